// Package interop tests that the packages of IMPI work with another implementation,
// LAM/MPI 7.1.4. It has no code: the script run builds LAM/MPI and runs jobs of it with and without
// Go processes, whose part is a test of this package; see docs/impi.md.
package interop
