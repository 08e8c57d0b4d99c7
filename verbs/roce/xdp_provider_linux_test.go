package roce

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/xdp"
	"github.com/sluice-hpc/sluice/verbs"
)

// Probe is right: after a helper was killed and has left its socket, Open does without it, as Probe
// says.
func TestStaleHelper(t *testing.T) {
	need.Full(t)
	needXDP(t)
	two := hosts(t, 1500)
	path, asked := xdp.HelperPath()
	require.False(t, asked)
	var probe verbs.Probe
	var ctx verbs.ProviderContext
	require.NoError(t, as(t, two[0], 0, func() error {
		// A /run of this thread's own, which has the default path.
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.Mkdir("/run/sluice", 0o755); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return err
		}
		probe = xdpProvider{}.Probe()
		ctx, err = xdpProvider{}.Open("xdp_veth0", verbs.Config{})
		return err
	}))
	require.Equal(t, verbs.Yes, probe.Answer, probe.Reason)
	require.NoError(t, ctx.Close())
}

// An interface other than Ethernet is not a device, nor makes Probe answer yes.
func TestNoEthernet(t *testing.T) {
	need.Full(t)
	needXDP(t)
	h := hosts(t, 1500)[0]
	err := ip("-n", string(h), "tuntap", "add", "dev", "tun0", "mode", "tun")
	for _, kind := range []string{"wireguard", "ipip", "sit", "gre"} {
		if err != nil {
			err = ip("-n", string(h), "link", "add", "tun0", "type", kind)
		}
	}
	need.Probe(t, "a tunnel device", err)
	h.ip(t, "addr", "add", "198.18.5.1/24", "dev", "tun0")
	h.ip(t, "link", "set", "tun0", "up")
	names := func() (names []string) {
		list, err := xdpProvider{}.Devices()
		require.NoError(t, err)
		for _, d := range list {
			names = append(names, d.Name)
		}
		return names
	}
	require.NoError(t, h.in(func() error {
		require.Equal(t, []string{"xdp_veth0"}, names())
		require.Equal(t, verbs.Yes, xdpProvider{}.Probe().Answer)
		_, err := xdpProvider{}.Open("xdp_tun0", verbs.Config{})
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		require.ErrorContains(t, err, "tun0")
		return nil
	}))
	h.ip(t, "link", "set", "veth0", "down")
	require.NoError(t, h.in(func() error {
		require.Empty(t, names())
		p := xdpProvider{}.Probe()
		require.Equal(t, verbs.No, p.Answer)
		require.Contains(t, p.Reason, "no Ethernet interface")
		return nil
	}))
}
