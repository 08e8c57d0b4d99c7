//go:build race

package roce

import "syscall"

// For the race detector, what one goroutine did before it wrote to any
// descriptor happens before what another does after it has read from any:
// package syscall tells it so at each Read and Write. Raw system calls have
// these say it, with calls that move nothing.
func raceRead(fd int) { syscall.Read(fd, nil) }
func raceWrite()      { syscall.Write(-1, nil) }
