// Package xdp sends and receives UDP packets past the network stack of Linux, through AF_XDP
// sockets (Documentation/networking/af_xdp.rst of the kernel), for package verbs/roce.
//
// A [Port] is one queue of a network interface. Its owner is privileged: it registers the
// memory (UMEM), loads the program that picks packets by destination address and port, and
// attaches it. Processes of one user share a port: each has a [Seat], with its own receive
// and transmit rings and its own frames to send from. Received packets are in frames that
// belong to the port; the ring that returns these to the kernel is shared:
//
//	            +--------------- memory: frames | control ----------------+
//	            |                                                         |
//	seat 0   rx ring  tx ring     seat 1   rx ring  tx ring     fill ring  completion ring
//	            ^       |                     ^       |           |  all      |  all
//	            |       v                     |       v           v           v
//	     -------+-------+---------------------+-------+-----------+-----------+------
//	     queue of the interface: program -> address and port -> number of the seat
//
// A seat needs no privilege: it has descriptors and maps their rings. The process itself
// provides them if it is privileged, otherwise the helper does ([Helper], `sluice
// xdp-helper`). Rings and control words may hold anything that a process of the same user
// wrote: their contents are checked before use, and no process waits for another's lock.
//
// The network stack gets everything that the program does not pick: fragments, IP options,
// ports without a seat, and all packets once the owner is gone.
package xdp
