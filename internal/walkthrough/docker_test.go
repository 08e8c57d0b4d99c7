package walkthrough

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/internal/netns"
)

// storeVariable names the folder of the store that the stand-ins for docker and kubectl use.
const storeVariable = "SLUICE_TEST_STORE"

// docker is what the pages use of docker: buildah builds, and containers are started by this package.
func docker() error {
	s := store{os.Getenv(storeVariable)}
	f := flag.NewFlagSet("docker", flag.ContinueOnError)
	switch args := os.Args[2:]; os.Args[1] {
	case "build":
		tag := f.String("t", "", "")
		if err := f.Parse(args); err != nil {
			return err
		}
		return s.build(*tag, f.Arg(0))
	case "push":
		_, err := s.run("push", args[0], s.registry(args[0]))
		return err
	case "run":
		return s.dockerRun(f, args)
	}
	return fmt.Errorf("no docker %s here", os.Args[1])
}

// dockerRun ends this process with the status of the container.
func (s store) dockerRun(f *flag.FlagSet, args []string) error {
	f.Bool("rm", false, "")
	network := f.String("network", "", "")
	user := f.Int("user", -1, "")
	memory, milli := int64(0), int64(0)
	var env []string
	f.Func("e", "", func(v string) error {
		if !strings.Contains(v, "=") {
			v += "=" + os.Getenv(v)
		}
		env = append(env, v)
		return nil
	})
	f.Func("memory", "", func(v string) (err error) {
		number, found := strings.CutSuffix(v, "m")
		if !found {
			return errors.New("want MiB, as in 512m")
		}
		memory, err = strconv.ParseInt(number, 10, 32)
		memory <<= 20
		return err
	})
	f.Func("cpus", "", func(v string) error {
		n, err := strconv.ParseFloat(v, 64)
		milli = int64(n * 1000)
		return err
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	i, err := s.open(f.Arg(0))
	if err != nil {
		return err
	}
	c, err := i.container(f.Args()[1:])
	if err != nil {
		return err
	}
	c.Env = append(c.Env, env...)
	if *user >= 0 {
		c.User = *user
	}
	c.Files = map[string]string{"hosts": hostsFile(nil, c.Name), "resolv.conf": ""}
	place := netns.Namespace(0)
	switch *network {
	case "host":
	case "":
		if place, err = newNetwork(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("no network %s here", *network)
	}
	r, err := c.start(place, memory, milli, os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	status := r.status()
	if err := r.remove(); err != nil {
		return err
	}
	os.Exit(status)
	return nil
}

// newNetwork makes a network that is alone: nothing but loopback.
func newNetwork() (netns.Namespace, error) {
	n, err := netns.New()
	if err != nil {
		return n, err
	}
	return n, n.In(loopbackUp)
}
