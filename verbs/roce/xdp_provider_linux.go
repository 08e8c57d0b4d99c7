package roce

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/variable"
	"github.com/sluice-hpc/sluice/internal/xdp"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
)

// envMode chooses how a process that opens an interface itself attaches to it.
const envMode = "SLUICE_XDP_MODE"

// Probe says whether there is a helper, and if not, what this process lacks to do without.
func (xdpProvider) Probe() verbs.Probe {
	nics, err := ethernets()
	switch {
	case err != nil:
		return verbs.Probe{Answer: verbs.Unknown, Reason: err.Error()}
	case len(nics) == 0:
		return verbs.Probe{Answer: verbs.No, Reason: "no Ethernet interface is up and has an IP address"}
	}
	path, asked := xdp.HelperPath()
	err = xdp.Reach(path)
	switch {
	case err == nil:
		return verbs.Probe{Answer: verbs.Yes}
	case errors.Is(err, limits.ErrFiles):
		return verbs.Probe{Answer: verbs.Unknown, Reason: limits.Files(err).Error()}
	case asked:
		return verbs.Probe{Answer: verbs.No, Reason: err.Error()}
	}
	switch err := xdp.Supported(); {
	case errors.Is(err, xdp.ErrNever):
		return verbs.Probe{Answer: verbs.No, Reason: err.Error()}
	case errors.Is(err, xdp.ErrPrivilege):
		return verbs.Probe{Answer: verbs.No, Reason: fmt.Sprintf("%v; and no 'sluice xdp-helper' listens at %s", err, path)}
	case err != nil:
		return verbs.Probe{Answer: verbs.Unknown, Reason: err.Error()}
	}
	return verbs.Probe{Answer: verbs.Yes}
}

// ethernets lists the interfaces that can be devices.
func ethernets() ([]nic.NIC, error) {
	nics, err := nic.List()
	return slices.DeleteFunc(nics, func(n nic.NIC) bool { return !n.Ether }), err
}

func (xdpProvider) Devices() ([]verbs.DeviceInfo, error) {
	nics, err := ethernets()
	var infos []verbs.DeviceInfo
	for _, n := range nics {
		infos = append(infos, verbs.DeviceInfo{Name: xdpName + "_" + n.Name, Netdev: n.Name})
	}
	return infos, err
}

func (xdpProvider) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	const op = "open"
	n, err := nic.Find(xdpName, device, &cfg)
	if err != nil {
		return nil, err
	}
	if !n.Ether {
		return nil, verbs.Errorf(device, op, verbs.ErrNotSupported, "interface %s is not an Ethernet interface", n.Name)
	}
	u, err := openUDP(n.Addrs[0], n.MTU, 0)
	if err != nil {
		return nil, verbs.Errorf(device, op, err, "")
	}
	u.link = n.Name
	w, err := overXDP(u, &n)
	if err != nil {
		u.close()
		switch {
		case errors.Is(err, xdp.ErrForbidden), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			return nil, verbs.Errorf(device, op, verbs.ErrNotSupported, "%v", err)
		case errors.Is(err, unix.EBUSY):
			return nil, verbs.Errorf(device, op, verbs.ErrBusy, "%v: another process uses the interface; 'sluice xdp-helper' lets several share it", err)
		}
		return nil, verbs.Errorf(device, op, err, "")
	}
	if w.maxMTU() < verbs.MTU256.Bytes() {
		w.close()
		return nil, verbs.Errorf(device, op, verbs.ErrInvalid, "the link's MTU of %d bytes is too small for packets with 256 bytes of payload", n.MTU)
	}
	began := time.Now().Add(-1)
	a := newAdapter(device, n.Name, cfg, w, func() int64 { return int64(time.Since(began)) })
	if a.ackEach, err = acknowledging(); err != nil {
		w.close()
		return nil, verbs.Errorf(device, op, err, "")
	}
	if err := startDriver(a, w.stir, w.seat.FD(), u.fd); err != nil {
		w.close()
		return nil, verbs.Errorf(device, op, err, "")
	}
	return a, nil
}

// overXDP makes the wire from a UDP socket, with a seat from the helper, or from this process itself
// if there is no helper.
func overXDP(u *udp, n *nic.NIC) (*express, error) {
	paths, err := xdp.NewPaths(n.Index)
	if err != nil {
		return nil, err
	}
	seat, err := sit(u, n)
	if err != nil {
		paths.Close()
		return nil, err
	}
	return newExpress(u, seat, paths), nil
}

func sit(u *udp, n *nic.NIC) (*xdp.Seat, error) {
	path, asked := xdp.HelperPath()
	out := xdp.Reach(path)
	if asked || out == nil {
		return xdp.Ask(path, n.Name, u.fd)
	}
	mode := cmp.Or(os.Getenv(envMode), variable.XDPMode)
	if mode != "generic" && mode != "native" {
		return nil, fmt.Errorf("%w: %s=%s: want generic or native", verbs.ErrInvalid, envMode, mode)
	}
	seat, err := xdp.Sit(u.fd, n.Index, n.MTU, 0, mode == "native")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w; and %v", err, out)
	}
	return seat, err
}
