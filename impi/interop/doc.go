// Package interop tests that the packages of IMPI work with another implementation,
// LAM/MPI 7.1.4. It has no code: run builds that and runs jobs of it with and without
// processes of Go, whose part is a test of this package; see docs/impi.md.
package interop
