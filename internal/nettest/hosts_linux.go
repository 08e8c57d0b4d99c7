package nettest

import "github.com/sluice-hpc/sluice/internal/netns"

// maxHosts is the most contexts that are open at a time.
const maxHosts = 24

// idle are the hosts of this process that no context has.
var idle = make(chan netns.Namespace, maxHosts)

func makeHosts() error {
	star, err := netns.NewStar(maxHosts)
	if err != nil {
		return err
	}
	for _, h := range star.Hosts {
		idle <- h
	}
	return nil
}
