// Package xdp moves UDP packets past the network stack of Linux, through AF_XDP
// sockets (Documentation/networking/af_xdp.rst of the kernel), for package verbs/roce.
//
// A [Port] is one queue of a network interface. Its owner is privileged: it registers
// the memory (UMEM), loads the program that picks packets by destination address and
// port, and attaches it. Processes of one user share a port: each has a [Seat], with
// rings of its own for what arrives and what it sends, and frames of its own to send
// from. What it receives is in frames that belong to the port; the ring by which these
// go back to the kernel is shared:
//
//	            +--------------- memory: frames | control ----------------+
//	            |                                                         |
//	seat 0   rx ring  tx ring     seat 1   rx ring  tx ring     fill ring  completion ring
//	            ^       |                     ^       |           |  all      |  all
//	            |       v                     |       v           v           v
//	     -------+-------+---------------------+-------+-----------+-----------+------
//	     queue of the interface: program -> address and port -> number of the seat
//
// A seat needs no privilege: it has descriptors, of which it maps the rings. They are
// handed out by the process itself if that is privileged, or by the helper
// ([Helper], `sluice xdp-helper`). What is in the rings and in the control words may be
// anything a process of the same user wrote: it is checked before use, and nobody
// waits for another's lock.
//
// What the program does not pick goes the usual way: fragments, IP options, ports that
// have no seat, and everything when the owner is gone.
package xdp
