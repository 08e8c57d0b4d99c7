package nettest

import (
	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/verbs"
	_ "github.com/sluice-hpc/sluice/verbs/roce" // what stands beneath
)

// apart is a provider whose contexts are each opened in a host of their own. What finds a
// device by the interface of a connection finds it at loopback, where the ranks of one
// process agree on the rest.
type apart struct{ beneath verbs.Provider }

func (a apart) Name() string { return a.beneath.Name() + suffix }

func (a apart) Rank() int { return a.beneath.Rank() }

func (apart) OnRequest() bool { return true }

func (apart) Probe() verbs.Probe { return verbs.Probe{Answer: verbs.Yes} }

func (a apart) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: a.Name(), Netdev: "lo"}}, nil
}

func (a apart) Open(device string, cfg verbs.Config) (_ verbs.ProviderContext, err error) {
	var host netns.Namespace
	select {
	case host = <-idle:
	default:
		return nil, verbs.Errorf(device, "open", verbs.ErrNoMemory, "all %d hosts are in use", maxHosts)
	}
	cfg.Address = ""
	o := &occupied{host: host}
	err = host.In(func() (err error) {
		o.ProviderContext, err = a.beneath.Open(a.beneath.Name()+"_veth0", cfg)
		return err
	})
	if err != nil {
		idle <- host
		return nil, err
	}
	return o, nil
}

// occupied is a context and its host.
type occupied struct {
	verbs.ProviderContext
	host netns.Namespace
}

func (o *occupied) Close() error {
	err := o.ProviderContext.Close()
	idle <- o.host
	return err
}
