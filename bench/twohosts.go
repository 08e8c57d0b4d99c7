package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// defaultPort is where --listen listens, and where a host is looked for, without a port.
const defaultPort = "18516"

// goodbye bounds how long the one that listens stays for the other to leave.
const goodbye = 5 * time.Second

// meetOptions say how two processes meet that no launcher has started: one listens, the
// other is told where. The one that is told is rank 0, and prints.
type meetOptions struct {
	listen string // address; empty: does not listen
	host   string // address of the one that listens; empty: none
}

// hosts takes the host from the arguments of a command that two ranks can measure.
func (o *meetOptions) hosts(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	// A name without a dot may as well be a pattern that is spelled wrongly.
	if len(args) > 1 || !strings.ContainsAny(args[0], ".:") && args[0] != "localhost" {
		return usagef("unknown command or argument %q; see %s --help; a host that listens is HOST:PORT", args[len(args)-1], cmd.CommandPath())
	}
	o.host = withPort(args[0])
	return nil
}

// withPort is an address with the default port, where it has none.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), defaultPort)
}

// check says what cannot be meant; o.listen may still lack its port.
func (o *meetOptions) check() {
	if o.listen != "" && o.host != "" {
		must(usagef("--listen and %s: want one of them", o.host))
	}
	if (o.listen != "" || o.host != "") && os.Getenv(boot.EnvRank) != "" {
		must(usagef("a rank of a job neither listens nor is told of a host"))
	}
}

// meet makes this process one of two ranks where it listens, or has been told of a host.
// ctx is then what it joins with; stop ends the rendezvous.
func (o *meetOptions) meet(ctx context.Context) (_ context.Context, stop func()) {
	stop = func() {}
	if o.listen == "" && o.host == "" {
		return ctx, stop
	}
	server, rank := o.host, 0
	var ln net.Listener
	if o.listen != "" {
		ln = must1(net.Listen("tcp", withPort(o.listen)))
		rank, server = 1, nearby(ln.Addr().(*net.TCPAddr))
	} else {
		fmt.Fprintf(os.Stderr, "bench: looking for the one that listens at %s\n", o.host)
	}
	e := must1(boot.ByHand(rank, 2, server))
	e.Job = cmp.Or(e.Job, "bench")
	if ln != nil {
		s := serve(ln, e)
		stop = func() { endServer(s) }
		fmt.Fprintf(os.Stderr, "bench: listening at %s: give the same command, with this host's address in place of --listen, on the other host\n", ln.Addr())
	}
	return boot.WithEnvironment(ctx, e), stop
}

// serve serves the rendezvous of a job.
func serve(ln net.Listener, e boot.Environment) *boot.Server {
	return must1(boot.Serve(context.Background(), ln, boot.ServerOptions{Size: e.Size, Job: e.Job, Secret: e.Secret, Insecure: e.Insecure}))
}

// endServer ends a rendezvous that we serve: the others say goodbye to it, too, and what
// they tell is not ours.
func endServer(s *boot.Server) {
	within, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = s.Wait(within)
	_ = s.Close()
}

// nearby is an address at which this very process reaches a listener of its own.
func nearby(a *net.TCPAddr) string {
	if !a.IP.IsUnspecified() {
		return a.String()
	}
	// What listens at all addresses of IPv6 takes those of IPv4 as well.
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port}).String()
}
