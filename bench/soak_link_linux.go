package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// soakLink is two network name spaces with a link between, which can lose packets: many
// kernels have no netem, but rules of nftables that drop at random.
//
//	   network one                 network two
//	+--------------+            +--------------+
//	|  198.18.0.1  | -- veth -- |  198.18.0.2  |   each drops what comes in
//	+--------------+            +--------------+
type soakLink struct{ names [2]string }

func newSoakLink() (l *soakLink, err error) {
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %s", errNotInstalled, program)
		}
	}
	l = &soakLink{[2]string{fmt.Sprintf("soakA%d", os.Getpid()), fmt.Sprintf("soakB%d", os.Getpid())}}
	commands := []string{"ip netns add " + l.names[0], "ip netns add " + l.names[1],
		fmt.Sprintf("ip -n %s link add veth0 type veth peer name veth0 netns %s", l.names[0], l.names[1])}
	for i, name := range l.names {
		// RFC 2544: 198.18.0.0/15 is for tests of networks.
		commands = append(commands, fmt.Sprintf("ip -n %s addr add 198.18.0.%d/24 dev veth0", name, i+1),
			fmt.Sprintf("ip -n %s link set veth0 up", name), fmt.Sprintf("ip -n %s link set lo up", name))
	}
	for _, c := range commands {
		words := strings.Fields(c)
		if err = cmp.Or(err, do(words[0], words[1:]...)); err != nil {
			break
		}
	}
	// Whether the kernel has what is needed is found out by doing it.
	if err == nil {
		err = l.lose(1)
	}
	if err == nil {
		err = l.heal()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func do(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// lose has the link lose so many of a hundred packets.
func (l *soakLink) lose(percent int) (err error) {
	defer catch(&err)
	which := ""
	if percent < 100 {
		which = fmt.Sprintf("numgen random mod 100 < %d ", percent)
	}
	rules := fmt.Sprintf("table inet soak { chain in { type filter hook input priority 0; iifname veth0 %sdrop; }; }", which)
	l.each(func(name string) error { return do("ip", "netns", "exec", name, "nft", rules) })
	return nil
}

// heal has it lose none.
func (l *soakLink) heal() (err error) {
	defer catch(&err)
	l.each(func(name string) error { return do("ip", "netns", "exec", name, "nft", "delete table inet soak") })
	return nil
}

// Close takes the networks away.
func (l *soakLink) Close() (err error) {
	defer catch(&err)
	l.each(func(name string) error { return do("ip", "netns", "del", name) })
	return nil
}

func (l *soakLink) each(what func(name string) error) {
	must(errors.Join(what(l.names[0]), what(l.names[1])))
}

// listen listens in the first network. The socket stays there when the thread has left.
func (l *soakLink) listen() (ln net.Listener, err error) {
	// A thread that could not go back ends with its goroutine.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var own, other *os.File
		if own, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return
		}
		defer own.Close()
		if other, err = os.Open("/run/netns/" + l.names[0]); err != nil {
			return
		}
		defer other.Close()
		if err = unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		ln, err = net.Listen("tcp", "198.18.0.1:0")
		if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return ln, err
}
