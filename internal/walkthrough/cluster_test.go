package walkthrough

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sluice-hpc/sluice/internal/netns"
)

// cluster is a network of pods, each with a network of its own, and with names that a server in the router
// resolves. A headless service gives a pod its name as soon as it has an address, ready or not.
//
//	     pod 0                       router                       pod 1
//	+------------+          +---------------------+          +------------+
//	| 198.18.1.2 | - veth - | 198.18.1.1:53 (DNS) | - veth - | 198.18.2.2 |
//	+------------+          +---------------------+          +------------+
type cluster struct {
	star  *netns.Star
	conn  net.PacketConn
	image image

	mu      sync.Mutex
	names   map[string]net.IP
	asked   map[string]chan struct{} // closed when that name was asked for, and was not there
	running []*running
}

func newCluster(pods int, i image) (*cluster, error) {
	star, err := netns.NewStar(pods)
	if err != nil {
		return nil, err
	}
	c := &cluster{star: star, image: i, names: map[string]net.IP{}, asked: map[string]chan struct{}{}}
	err = star.Router.In(func() (err error) {
		c.conn, err = net.ListenPacket("udp4", ":53")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, star.Close())
	}
	go c.serve()
	return c, nil
}

// close ends all pods, and removes the cluster.
func (c *cluster) close() error {
	var errs []error
	for _, r := range c.running {
		errs = append(errs, r.remove())
	}
	return errors.Join(append(errs, c.conn.Close(), c.star.Close())...)
}

// serve answers questions for names, until the socket is closed.
func (c *cluster) serve() {
	b := make([]byte, 512)
	for {
		n, from, err := c.conn.ReadFrom(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Header.Response, m.Header.Authoritative = true, true
		m.Additionals = nil
		c.mu.Lock()
		name := strings.TrimSuffix(q.Name.String(), ".")
		ip, ok := c.names[name]
		if !ok {
			m.Header.RCode = dnsmessage.RCodeNameError
			if asked := c.asked[name]; asked != nil {
				close(asked)
				delete(c.asked, name)
			}
		}
		c.mu.Unlock()
		if ok && q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte(ip.To4())},
			}}
		}
		if answer, err := m.Pack(); err == nil {
			c.conn.WriteTo(answer, from)
		}
	}
}

// awaited returns a channel that is closed when a name has been asked for that no pod has.
func (c *cluster) awaited(name string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := make(chan struct{})
	c.asked[name] = asked
	return asked
}

// start starts a pod at a place of the network, as kubelet does.
func (c *cluster) start(p pod, place int, out io.Writer) (*running, error) {
	k, err := p.container(c.image)
	if err != nil {
		return nil, err
	}
	ip := netns.Address(place)
	k.Files = map[string]string{
		"hosts": hostsFile(ip, p.fqdn, p.name),
		"resolv.conf": fmt.Sprintf("search %[2]s.svc.%[1]s svc.%[1]s %[1]s\nnameserver 198.18.%[3]d.1\noptions ndots:5\n",
			clusterDomain, namespace, place+1),
		"hostname": p.name + "\n",
	}
	c.mu.Lock()
	c.names[p.fqdn] = ip
	c.mu.Unlock()
	r, err := k.start(c.star.Hosts[place], p.memory, p.milli, out, out)
	if err != nil {
		return nil, err
	}
	c.running = append(c.running, r)
	return r, nil
}
