package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/reach"
)

// keyVariable is the environment variable with the key of IMPI clients.
const keyVariable = "IMPI_AUTH_KEY"

func newServer() *cobra.Command {
	var auth authMethod
	addr := ":0"
	s := startup.Server{Join: 10 * time.Minute, Collect: time.Minute}
	verbose := false
	cmd := &cobra.Command{
		Use:   "server -n CLIENTS [flags]",
		Short: "Run the startup server that connects the clients of an IMPI job",
		Long:  serverHelp,
		Example: `  IMPI_AUTH_KEY=271828 sluice server -n 2
  sluice server -n 2 --addr 127.0.0.1:0 --auth none`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Join <= 0 || s.Collect <= 0 {
				return &usageError{cmd, errors.New("--join-timeout and --collect-timeout must be above 0")}
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			s.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			return serve(cmd, s, auth, addr)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVarP(&s.Clients, "clients", "n", 0, "`number` of clients, 1 to 32")
	flags.StringVar(&addr, "addr", addr, "`host:port` to listen on; no host: all addresses; port 0: any free port")
	flags.Var(&choice[authMethod]{&auth, []string{"key", "none"}}, "auth", "how clients prove that they belong to the job; none needs a host in --addr")
	flags.DurationVar(&s.Join, "join-timeout", s.Join, "`duration` within which all clients must join")
	flags.DurationVar(&s.Collect, "collect-timeout", s.Collect, "`duration` within which they must then start")
	flags.BoolVarP(&verbose, "verbose", "v", false, "log every label as well")
	return cmd
}

const serverHelp = `Server is the startup server of an IMPI (Interoperable MPI) job. Each client of the
job stands for the processes of one MPI implementation, on any number of hosts. The
server prints the address that the clients need, as IP:PORT, logs on standard error
which clients join and leave, and ends when all clients have ended. The exit status
is 0 if they all finished.

Clients prove with a key that they belong to the job: a decimal number in
IMPI_AUTH_KEY, the same for clients and server. If it is not set, the server makes a
key and prints it on standard error. The key crosses the network in the clear. With
--auth none any process that reaches the server can become a client: use this only
on a loopback address, or on one that only the clients can reach.

Until all clients have joined, the place of a lost client can be taken by another.
From then until the job runs, a lost client ends the job. The log says which one,
and why.`

type authMethod int

const (
	authKey authMethod = iota
	authNone
)

func serve(cmd *cobra.Command, s startup.Server, auth authMethod, addr string) error {
	if s.Clients < 1 || s.Clients > startup.MaxClients { // before a key is made and printed
		return &usageError{cmd, fmt.Errorf("%d clients: want 1 to %d (-n)", s.Clients, startup.MaxClients)}
	}
	s.Auth = startup.AuthNone
	if auth == authKey {
		s.Auth = startup.AuthKey
		var err error
		if s.Key, err = serverKey(cmd); err != nil {
			return err
		}
	}
	l, err := reach.Listen(cmd.Context(), net.ListenConfig{}, addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.Check(l.Addr()); err != nil {
		l.Close()
		return &usageError{cmd, err}
	}
	at, err := reachable(l.Addr().(*net.TCPAddr))
	if err != nil {
		l.Close()
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), at)
	_, err = s.Serve(ctx, l)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

// serverKey returns the key of the environment, or a new one, which it prints.
func serverKey(cmd *cobra.Command) (uint64, error) {
	if text, ok := os.LookupEnv(keyVariable); ok {
		key, err := strconv.ParseUint(text, 10, 64)
		if err != nil || key == 0 {
			// The value is a secret, so it is not shown.
			return 0, &usageError{cmd, fmt.Errorf("%s is not a decimal number from 1 to %d", keyVariable, uint64(1<<64-1))}
		}
		return key, nil
	}
	var b [8]byte
	rand.Read(b[:])
	key := binary.BigEndian.Uint64(b[:])>>1 | 1 // a signed number too, and not 0
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s=%d\n", keyVariable, key)
	return key, err
}

// reachable returns the address for clients of a server that listens on a: if that is all
// addresses, the one at which other hosts are most likely to reach this one.
func reachable(a *net.TCPAddr) (string, error) {
	if !a.IP.IsUnspecified() {
		return a.String(), nil
	}
	list, err := reach.Addresses()
	if err != nil {
		return "", err
	}
	return netip.AddrPortFrom(list[0], uint16(a.Port)).String(), nil
}
