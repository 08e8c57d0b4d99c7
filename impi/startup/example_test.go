package startup_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/sluice-hpc/sluice/impi/startup"
)

// A job of two clients with one host each, and its server.
func Example() {
	ctx := context.Background()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := startup.Server{Clients: 2, Key: 271828}
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := server.Serve(ctx, l); err != nil {
			fmt.Println(err)
		}
	})
	client := func(rank int) {
		job, err := startup.Dial(ctx, l.Addr().String(), startup.Config{
			Rank: rank,
			Key:  271828,
			Hosts: []startup.Host{{
				ID:        startup.HostIDOf(netip.AddrFrom4([4]byte{127, 0, 0, byte(rank + 1)})),
				Port:      7000,
				Processes: []startup.Process{{PID: 1}, {PID: 2}},
			}},
			PacketLen: uint32(1000 * (rank + 1)),
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		if rank == 0 {
			other := job.Clients[1].Hosts[0]
			fmt.Printf("client 1: %v port %d, %d processes, packets of %d bytes\n",
				other.ID, other.Port, len(other.Processes), job.PacketLen(0, 1))
		}
		if err := job.Finish(); err != nil {
			fmt.Println(err)
		}
	}
	group.Go(func() { client(0) })
	group.Go(func() { client(1) })
	group.Wait()
	// Output: client 1: 127.0.0.2 port 7000, 2 processes, packets of 1000 bytes
}
