package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/launch"
)

// twoEnds is a program that is started twice, as a server and as a client that is told
// where the server is.
type twoEnds struct {
	path   string
	args   []string // of both
	server []string // more of the server
	host   []string // more of the client
	env    []string // NAME=value, of both
}

// endsStart bounds how long a server takes to listen.
const endsStart = 20 * time.Second

// run runs both ends, bound as ours are, and returns what the client has printed.
func (t *twoEnds) run(ctx context.Context) (*bytes.Buffer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	binds := endsBinds()
	end := func(rank int, more []string) (*exec.Cmd, *bytes.Buffer) {
		all := slices.Concat(binds[rank], []string{t.path}, t.args, more)
		cmd := exec.CommandContext(ctx, all[0], all[1:]...)
		cmd.Env = append(os.Environ(), t.env...)
		inOwnGroup(cmd)
		cmd.WaitDelay = 5 * time.Second
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out
	}
	server, told := end(1, t.server)
	if err := server.Start(); err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- server.Wait() }()
	for until := time.Now().Add(endsStart); ; {
		client, out := end(0, t.host)
		err := client.Run()
		if err == nil {
			cancelled := ctx.Err()
			return out, errors.Join(cancelled, <-served)
		}
		// A server says nothing of listening: who comes too early comes again.
		if !comesTooEarly(out.Bytes()) || time.Now().After(until) {
			cancel()
			<-served
			return nil, fmt.Errorf("%s: %w\n%s%s", strings.Join(client.Args, " "), err, out.Bytes(), told.Bytes())
		}
		select {
		case err := <-served:
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(server.Args, " "), err, told.Bytes())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// comesTooEarly says whether a client, of perftest, UCX or libfabric, found nobody.
func comesTooEarly(said []byte) bool {
	for _, words := range []string{"Couldn't connect", "Connection refused", "connect() failed", "connection refused"} {
		if bytes.Contains(said, []byte(words)) {
			return true
		}
	}
	return false
}

// endsBinds is what binds rank 0 and rank 1 to CPUs of their own.
func endsBinds() [2][]string {
	cpus, err := launch.Cores()
	if err != nil || len(cpus) < 2 {
		return [2][]string{}
	}
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		return [2][]string{}
	}
	return [2][]string{{taskset, "-c", strconv.Itoa(cpus[0])}, {taskset, "-c", strconv.Itoa(cpus[1])}}
}
