// Package sluice is the root of a library of message passing for high-performance programs. It
// has no code; import what you need:
//
//   - channel: messages that are declared once and started often, collectives, groups
//   - impi: messages with MPI's semantics, also with other MPI implementations in one job
//   - qmp: QMP, the message passing API of lattice QCD
//   - fanout: chunks of data to workers that ask for them
//   - exact: sums that are rounded once
//   - verbs: queue pairs and registered memory; verbs/all links every provider
//
// Most programs begin with [channel.Main]. README.md has a complete one, examples has more.
//
// [channel.Main]: https://pkg.go.dev/github.com/sluice-hpc/sluice/channel#Main
package sluice
