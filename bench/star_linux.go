package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/netns"
)

// newStar has each rank of a job start on a host of its own: network namespaces that a router
// joins, which envRouter tells of. They last as long as the ranks.
func newStar(o *launch.Options) (io.Closer, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, fmt.Errorf("%w: nft, which has the router lose packets", errNotInstalled)
	}
	s, err := netns.NewStar(o.Size)
	if err != nil {
		return nil, err
	}
	err = errors.Join(s.Cut(), s.Hosts[0].In(func() (err error) {
		o.Listener, err = net.Listen("tcp4", netns.Address(0).String()+":0")
		return err
	}))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	o.Bind = launch.None // what is bound is a thread, and ranks are started by another
	o.Place = func(rank int, start func() error) error { return s.Hosts[rank].In(start) }
	o.Env = append(o.Env, envRouter+"="+s.Router.Path())
	return s, nil
}

// lose has the router of this rank's star lose so many percent of all packets.
func lose(percent float64) {
	router := must1(netns.Open(os.Getenv(envRouter)))
	defer router.Close()
	must(router.Lose(int(percent * 10)))
}
