package verbs

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeProvider can be listed but not opened.
type fakeProvider struct {
	name    string
	rank    int
	probe   Probe
	devices []DeviceInfo
	err     error
}

func (p fakeProvider) Name() string                   { return p.name }
func (p fakeProvider) Rank() int                      { return p.rank }
func (p fakeProvider) Probe() Probe                   { return p.probe }
func (p fakeProvider) Devices() ([]DeviceInfo, error) { return p.devices, p.err }
func (p fakeProvider) Open(device string, _ Config) (ProviderContext, error) {
	return nil, Errorf(device, "open", ErrNotSupported, "by a fake")
}

// withRegistry gives a test a registry of its own.
func withRegistry(t *testing.T, ps ...Provider) {
	before := registry.providers
	registry.providers = nil
	t.Cleanup(func() { registry.providers = before })
	for _, p := range ps {
		Register(p)
	}
}

func TestRegisterRefuses(t *testing.T) {
	withRegistry(t, fakeProvider{name: "one"})
	for _, name := range []string{"", "One", "a/b", "seventeen-letters", "one"} {
		require.Panics(t, func() { Register(fakeProvider{name: name}) }, "%q", name)
	}
	require.Len(t, Providers(), 1)
	require.Equal(t, fakeProvider{name: "one"}, Lookup("one"))
	require.Nil(t, Lookup("two"))
}

func TestDevicesInOrderOfRank(t *testing.T) {
	broken := errors.New("out of order")
	withRegistry(t,
		fakeProvider{name: "slow", rank: 30, devices: []DeviceInfo{{Name: "slow0", Netdev: "lo"}}},
		fakeProvider{name: "absent", rank: 10, probe: Probe{No, "no such hardware"}, devices: []DeviceInfo{{Name: "ghost"}}},
		fakeProvider{name: "fast", rank: 20, probe: Probe{Yes, ""}, devices: []DeviceInfo{{Name: "fast0"}, {Name: "fast1"}}},
		fakeProvider{name: "broken", rank: 5, err: broken},
	)
	devs, err := Devices()
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "provider broken")
	var names []string
	for _, d := range devs {
		names = append(names, d.Provider()+"/"+d.Name())
	}
	require.Equal(t, []string{"fast/fast0", "fast/fast1", "slow/slow0"}, names)
	require.Equal(t, "lo", devs[2].Netdev())

	require.Equal(t, []ProviderInfo{
		{Name: "broken"}, {Name: "absent", Probe: Probe{No, "no such hardware"}}, {Name: "fast", Probe: Probe{Yes, ""}}, {Name: "slow"},
	}, Providers())
}

// onRequest is a provider that is used only if named.
type onRequest struct{ fakeProvider }

func (onRequest) OnRequest() bool { return true }

func TestOnRequest(t *testing.T) {
	withRegistry(t,
		fakeProvider{name: "any", rank: 1, devices: []DeviceInfo{{Name: "any0"}}},
		onRequest{fakeProvider{name: "asked", rank: 2, devices: []DeviceInfo{{Name: "asked0"}}}},
	)
	for name, want := range map[string]bool{"any": false, "asked": true} {
		d, err := Find(name)
		require.NoError(t, err)
		require.Equal(t, want, d.OnRequest(), name)
	}
	require.Equal(t, []ProviderInfo{{Name: "any"}, {Name: "asked", OnRequest: true}}, Providers())
}

func TestFind(t *testing.T) {
	withRegistry(t,
		// A device may have the name of another provider: the device wins.
		fakeProvider{name: "a", rank: 1, devices: []DeviceInfo{{Name: "a0"}, {Name: "b"}}},
		fakeProvider{name: "b", rank: 2, devices: []DeviceInfo{{Name: "b0"}, {Name: "b1"}}},
		fakeProvider{name: "c", rank: 3, probe: Probe{No, "kernel too old"}},
	)
	for name, want := range map[string]string{"a0": "a0", "b1": "b1", "a": "a0", "b": "b"} {
		d, err := Find(name)
		require.NoError(t, err)
		require.Equal(t, want, d.Name())
	}
	_, err := Find("c")
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "kernel too old")
	_, err = Find("d")
	require.ErrorIs(t, err, ErrNoDevice)
	for _, have := range []string{"a0", "b", "b0", "b1"} {
		require.ErrorContains(t, err, have)
	}
}

func TestOpenChecksConfig(t *testing.T) {
	withRegistry(t, fakeProvider{name: "a", devices: []DeviceInfo{{Name: "a0"}}})
	d, err := Find("a")
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		cfg  Config
		want error
	}{
		{"job of 65 bytes", Config{Job: string(slices.Repeat([]byte("j"), 65))}, ErrInvalid},
		{"negative timeout", Config{PeerTimeout: -1}, ErrInvalid},
		{"valid", Config{}, ErrNotSupported}, // from the fake
	} {
		_, err := d.Open(c.cfg)
		require.ErrorIs(t, err, c.want, c.name)
	}
}

func TestAnswer(t *testing.T) {
	require.Equal(t, []string{"could not tell", "yes", "no"}, []string{Unknown.String(), Yes.String(), No.String()})
}

func TestOpError(t *testing.T) {
	err := Errorf("dev0", "create QP", ErrInvalid, "%d SGEs", 99)
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, "verbs dev0: create QP: invalid argument: 99 SGEs", err.Error())
	var op *OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, OpError{Op: "create QP", Device: "dev0", Detail: "99 SGEs", Err: ErrInvalid}, *op)
	require.Equal(t, "verbs: close: use of closed object", Errorf("", "close", ErrClosed, "").Error())
}
