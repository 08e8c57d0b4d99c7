package startup

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func words(v ...uint32) []byte {
	var b []byte
	for _, w := range v {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// answersOf is what a server would answer to clients of the configurations.
func answersOf(t testing.TB, configs ...Config) map[Label]collReply {
	answers := make(map[Label]collReply)
	for rank, c := range configs {
		c.Rank = rank
		c, err := c.filled()
		require.NoError(t, err)
		for _, s := range c.submissions() {
			a := answers[s.label]
			answers[s.label] = collReply{s.label, a.mask | 1<<rank, append(a.data, s.data...)}
		}
	}
	return answers
}

// TestMute: what listens at the address of the server and never answers is given up.
func TestMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go io.Copy(io.Discard, theirs)
		c, err := (&Config{Rank: 1, Hosts: config(1).Hosts}).filled()
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = join(ctx, ours, c)
		require.EqualError(t, err, "impi/startup: authentication, client 1: deadline passed: no answer to AUTH within 30s: check that a startup server listens there")
		require.ErrorIs(t, err, ErrTimeout)
	})
}

// TestAgreement: two clients with values of their own.
func TestAgreement(t *testing.T) {
	v := serve(t, Server{Clients: 3})
	jobs, errs := dialAll(t, v.addr, 3, func(c *Config) {
		c.PacketLen = []uint32{1000, 1, 1 << 31}[c.Rank]
		c.TagUB = []int32{0, 40000, 32767}[c.Rank]
		c.XSize = []int32{0, -1, 1024}[c.Rank] // all the same
		c.MaxLinear = 7
		c.Hosts[0].AckMark, c.Hosts[0].HiWater = 3, 3
	})
	for rank, j := range jobs {
		require.NoError(t, errs[rank])
		require.EqualValues(t, 32767, j.TagUB)
		require.EqualValues(t, 1024, j.XSize)
		require.EqualValues(t, 7, j.MaxLinear)
		require.EqualValues(t, 1, j.PacketLen(0, 1))
		require.EqualValues(t, 1000, j.PacketLen(2, 0))
		require.EqualValues(t, 3, j.Clients[2].Hosts[0].HiWater)
		require.EqualValues(t, 10, j.Clients[2].Hosts[1].AckMark)
		require.EqualValues(t, 20, j.Clients[2].Hosts[1].HiWater)
		require.NoError(t, j.Finish())
	}
	_, err := v.wait()
	require.NoError(t, err)
}

// TestExtra: data of any length under labels that all, some and one of the clients have.
func TestExtra(t *testing.T) {
	v := serve(t, Server{Clients: 3})
	jobs, errs := dialAll(t, v.addr, 3, func(c *Config) {
		all := Extra{0x8001, []byte("all but 1's is longer"[:5+c.Rank%2])}
		c.Extra = [][]Extra{
			{all, {0x9000, []byte("zero")}},
			{all, {0xa000, nil}},
			{all, {0x9000, []byte("two")}},
		}[c.Rank]
	})
	for rank, j := range jobs {
		require.NoError(t, errs[rank])
		require.Equal(t, [][]byte{[]byte("all b"), []byte("all bu"), []byte("all b")}, j.Extra(0x8001))
		require.NoError(t, j.Finish())
	}
	for _, rank := range []int{0, 2} {
		require.Equal(t, [][]byte{[]byte("zero"), nil, []byte("two")}, jobs[rank].Extra(0x9000))
		require.Nil(t, jobs[rank].Extra(0xa000))
	}
	require.Nil(t, jobs[1].Extra(0x9000))
	require.Equal(t, [][]byte{nil, {}, nil}, jobs[1].Extra(0xa000))
	_, err := v.wait()
	require.NoError(t, err)
}

// TestForeign: a client that sends the protocol's labels alone, one by one, and stops
// at anything else, as LAM/MPI does.
func TestForeign(t *testing.T) {
	v := serve(t, Server{Clients: 2})
	stranger, failed := dialRaw(t, v.addr), make(chan error, 1)
	go func() {
		failed <- func() error {
			c, err := (&Config{Hosts: []Host{{ID: HostID{12: 127, 15: 1}, Port: 1, Processes: []Process{{PID: 1 << 33}}}}}).filled()
			if err != nil {
				return err
			}
			h := handshake{Config: c, conn: stranger, r: nil}
			h.Rank = 1
			return h.foreign()
		}()
	}()
	c := config(0)
	c.Extra = []Extra{{0x8001, []byte("for us")}}
	j, err := Dial(t.Context(), v.addr, c)
	require.NoError(t, err)
	require.True(t, j.Foreign())
	require.False(t, j.Clients[0].Foreign)
	require.True(t, j.Clients[1].Foreign)
	require.Equal(t, [][]byte{[]byte("for us"), nil}, j.Extra(0x8001))
	require.Equal(t, netip.MustParseAddr("127.0.0.1"), j.Clients[1].Hosts[0].ID.Addr())
	require.NoError(t, <-failed)
	require.NoError(t, j.Finish())
	stranger.send(finiWire)
	_, err = v.wait()
	require.NoError(t, err)
}

func TestAgree(t *testing.T) {
	put := func(l Label, data []byte) func(*testing.T, *Config, map[Label]collReply) {
		return func(_ *testing.T, _ *Config, a map[Label]collReply) { a[l] = collReply{l, 3, data} }
	}
	foreign := func(_ *testing.T, _ *Config, a map[Label]collReply) {
		a[LabelSluice] = collReply{LabelSluice, 1, appendSluice(nil)}
	}
	type edit = func(*testing.T, *Config, map[Label]collReply)
	for _, c := range []struct {
		name  string
		edits []edit
		fails error
		label Label
		rank  int
	}{
		{name: "as it is"},
		{name: "later versions", edits: []edit{put(LabelVersion, words(0, 0, 0, 1, 1, 0, 0, 0, 0, 7))}},
		{name: "foreign", edits: []edit{foreign}},
		{"missing", []edit{func(_ *testing.T, _ *Config, a map[Label]collReply) {
			a[LabelHostPort] = collReply{LabelHostPort, 1, nil}
		}}, ErrDisagree, LabelHostPort, 1},
		{"version odd", []edit{put(LabelVersion, words(0, 0, 0, 0, 0))}, ErrProtocol, LabelVersion, -1},
		{"version of one only", []edit{put(LabelVersion, words(0, 0, 0, 1))}, ErrDisagree, LabelVersion, -1},
		{"version of three", []edit{put(LabelVersion, make([]byte, 24))}, ErrDisagree, LabelVersion, -1},
		{"versions descend", []edit{put(LabelVersion, words(0, 0, 1, 0, 0, 9, 0, 0))}, ErrDisagree, LabelVersion, 0},
		{"no version 0.0", []edit{put(LabelVersion, words(0, 1, 0, 0))}, ErrDisagree, LabelVersion, 0},
		{"no versions", []edit{put(LabelVersion, nil)}, ErrDisagree, LabelVersion, -1},
		{"packets of 0", []edit{put(LabelPktLen, words(1, 0))}, ErrDisagree, LabelPktLen, 1},
		{"three packet lengths", []edit{put(LabelPktLen, words(1, 1, 1))}, ErrProtocol, LabelPktLen, -1},
		{"tags too small", []edit{put(LabelTagUB, words(32766, 32767))}, ErrDisagree, LabelTagUB, 0},
		{"tags negative", []edit{put(LabelTagUB, words(32767, 1<<31))}, ErrDisagree, LabelTagUB, 1},
		{"tags short", []edit{put(LabelTagUB, words(32767))}, ErrProtocol, LabelTagUB, -1},
		{"crossover differs", []edit{put(LabelXSize, words(1024, 1025))}, ErrDisagree, LabelXSize, 1},
		{"crossover -1 and 1", []edit{put(LabelXSize, words(1<<32-1, 1))}, ErrDisagree, LabelXSize, 1},
		{name: "crossover -1 and 1024", edits: []edit{put(LabelXSize, words(1<<32-1, 1024))}},
		{"crossover -2", []edit{put(LabelXSize, words(1<<32-2, 1<<32-2))}, ErrDisagree, LabelXSize, 0},
		{"linear differs", []edit{put(LabelMaxLinear, words(4, 5))}, ErrDisagree, LabelMaxLinear, 1},
		{name: "linear to 5", edits: []edit{put(LabelMaxLinear, words(5, 5))}},
		{"linear to 5, foreign", []edit{put(LabelMaxLinear, words(5, 5)), foreign}, ErrForeign, LabelMaxLinear, 1},
		{name: "linear to 5, foreign that follow", edits: []edit{put(LabelMaxLinear, words(5, 5)), foreign, func(_ *testing.T, c *Config, _ map[Label]collReply) {
			c.AnyMaxLinear = true
		}}},
		{"4 billion hosts", []edit{put(LabelNHosts, words(1<<32-1, 2))}, ErrDisagree, LabelNHosts, 0},
		{"no hosts", []edit{put(LabelNHosts, words(3, 0))}, ErrDisagree, LabelNHosts, 1},
		{"hosts left", []edit{put(LabelNHosts, words(1, 1))}, ErrDisagree, LabelHostIPv6, -1},
		{"part of an address", []edit{put(LabelHostIPv6, make([]byte, 49))}, ErrDisagree, LabelHostIPv6, -1},
		{"ports short", []edit{put(LabelHostPort, words(1, 2))}, ErrProtocol, LabelHostPort, -1},
		{"port 65536", []edit{put(LabelHostPort, words(1, 2, 65536))}, ErrDisagree, LabelHostPort, 1},
		{"ackmark 0", []edit{put(LabelHostAckMark, words(1, 0, 1))}, ErrDisagree, LabelHostAckMark, 1},
		{"hiwater below ackmark", []edit{put(LabelHostHiWater, words(20, 20, 9))}, ErrDisagree, LabelHostHiWater, 1},
		{"host without processes", []edit{put(LabelHostNProcs, words(2, 0, 2))}, ErrDisagree, LabelHostNProcs, 1},
		{"host of 4 billion", []edit{put(LabelHostNProcs, words(1, 1, 1<<32-1))}, ErrDisagree, LabelHostNProcs, 1},
		{"processes left", []edit{put(LabelHostNProcs, words(1, 1, 1))}, ErrDisagree, LabelProcPID, -1},
		{"processes elsewhere", []edit{put(LabelNProcs, words(2, 2))}, ErrDisagree, LabelNProcs, 0},
		{"PIDs of 4 bytes", []edit{put(LabelProcPID, words(1, 2, 3, 4))}, ErrDisagree, LabelProcPID, -1},
		{"PID twice", []edit{func(_ *testing.T, _ *Config, a map[Label]collReply) {
			a[LabelProcPID] = collReply{LabelProcPID, 3, words(0, 1, 0, 1, 0, 1, 0, 1)}
			a[LabelProcIPv6] = collReply{LabelProcIPv6, 3, make([]byte, 64)}
		}}, ErrDisagree, LabelProcPID, 1},
		{"another's label", []edit{put(LabelSluice, make([]byte, 16))}, ErrDisagree, LabelSluice, -1},
		{"a label of ours from a stranger", []edit{foreign, func(_ *testing.T, c *Config, a map[Label]collReply) {
			c.Extra = []Extra{{0x8001, nil}}
			a[0x8001] = collReply{0x8001, 3, make([]byte, 8)}
		}}, ErrForeign, 0x8001, 1},
		{"a label of ours, cut", []edit{func(_ *testing.T, c *Config, a map[Label]collReply) {
			c.Extra = []Extra{{0x8001, nil}}
			a[0x8001] = collReply{0x8001, 3, make([]byte, 7)}
		}}, ErrProtocol, 0x8001, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			configs := []Config{config(0), config(1)} // 1 and 2 hosts, of 1, 1, 2 processes
			answers := answersOf(t, configs...)
			for _, edit := range c.edits {
				edit(t, &configs[0], answers)
			}
			j, err := agree(&configs[0], 2, answers)
			if c.fails == nil {
				require.NoError(t, err)
				require.Len(t, j.Clients, 2)
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, c.fails)
			require.Equal(t, c.label, e.Label)
			require.Equal(t, c.rank, e.Rank)
		})
	}
}

func TestVersion(t *testing.T) {
	j := Job{Clients: []Client{
		{Versions: []Version{{0, 0}, {0, 1}, {1, 0}, {2, 5}}},
		{Versions: []Version{{0, 0}, {0, 1}, {1, 0}}},
		{Versions: []Version{{0, 0}, {2, 5}}},
		{Versions: []Version{{0, 0}}},
	}}
	for _, c := range []struct {
		a, b int
		want Version
	}{{0, 1, Version{1, 0}}, {0, 2, Version{2, 5}}, {1, 2, Version{}}, {3, 0, Version{}}, {0, 0, Version{2, 5}}} {
		require.Equal(t, c.want, j.Version(c.a, c.b))
		require.Equal(t, c.want, j.Version(c.b, c.a))
	}
	require.Equal(t, "2.5", Version{2, 5}.String())
}

func TestHostID(t *testing.T) {
	for addr, id := range map[string]string{
		"192.168.1.7": "000000000000000000000000c0a80107",
		"fe80::1":     "fe800000000000000000000000000001",
		"::1":         "00000000000000000000000000000001",
		"::":          "00000000000000000000000000000000",
	} {
		a := netip.MustParseAddr(addr)
		require.Equal(t, unhex(t, id), slices.Clone(func() []byte { b := HostIDOf(a); return b[:] }()), addr)
		require.Equal(t, a, HostIDOf(a).Addr(), addr)
		require.Equal(t, addr, HostIDOf(a).String())
	}
	mapped := netip.MustParseAddr("::ffff:10.0.0.1")
	require.Equal(t, HostID{12: 10, 15: 1}, HostIDOf(mapped))
	require.Equal(t, mapped.Unmap(), HostID(mapped.As16()).Addr())
	require.Equal(t, HostID{}, HostIDOf(netip.Addr{}))
}

func TestDialInvalid(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"rank -1":             func(c *Config) { c.Rank = -1 },
		"rank 32":             func(c *Config) { c.Rank = 32 },
		"unknown method":      func(c *Config) { c.Auth = 8 },
		"no hosts":            func(c *Config) { c.Hosts = nil },
		"no address":          func(c *Config) { c.Hosts[0].ID = HostID{} },
		"no processes":        func(c *Config) { c.Hosts[0].Processes = nil },
		"process twice":       func(c *Config) { c.Hosts[0].Processes = make([]Process, 2) },
		"hiwater":             func(c *Config) { c.Hosts[0].HiWater = 9 },
		"tags":                func(c *Config) { c.TagUB = 32766 },
		"crossover":           func(c *Config) { c.XSize = -2 },
		"linear":              func(c *Config) { c.MaxLinear = -2 },
		"answers":             func(c *Config) { c.MaxAnswer = -1 },
		"label of IMPI":       func(c *Config) { c.Extra = []Extra{{LabelProcPID, nil}} },
		"label of Sluice":     func(c *Config) { c.Extra = []Extra{{LabelSluice, nil}} },
		"labels that descend": func(c *Config) { c.Extra = []Extra{{0x8002, nil}, {0x8001, nil}} },
	} {
		c := config(0)
		edit(&c)
		_, err := Dial(t.Context(), "127.0.0.1:1", c)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
}

func TestDialCancelled(t *testing.T) {
	v := serve(t, Server{Clients: 2})
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, v.addr, config(0))
		failed <- err
	}()
	v.logs(t, "client joined")
	cancel(io.ErrNoProgress)
	require.ErrorIs(t, <-failed, io.ErrNoProgress)
	v.logs(t, "its place is free")
}

// TestOthersAnswers: a client passes over answers to labels that it does not submit, also
// from a server that sends them after DONE; and over nothing else.
func TestOthersAnswers(t *testing.T) {
	answers := answersOf(t, config(0), config(1))
	c := config(0)
	stream := func(before map[Label][]byte, last ...[]byte) []byte {
		b := append(authReply{}.append(nil), appendImpi(nil, 2)...)
		for _, s := range c.submissions() {
			b = append(b, before[s.label]...)
			b = answers[s.label].append(b)
		}
		return slices.Concat(append([][]byte{b}, last...)...)
	}
	for _, c := range []struct {
		name string
		says []byte
		want error
	}{
		{"before and between", stream(map[Label][]byte{
			LabelVersion: slices.Concat(answer(-1<<31, 2, "least"), answer(-5, 2, "x"), answer(7, 2, "")),
			LabelNHosts:  answer(LabelNHosts-1, 2, "y"),
		}, doneWire), nil},
		{"after DONE", stream(nil, answer(LabelSluice+1, 2, ""), answer(1<<31-1, 2, "z"), doneWire), nil},
		{"with our bit", stream(map[Label][]byte{LabelNHosts: answer(LabelNHosts-1, 3, "")}), ErrProtocol},
		{"with our bit, after DONE", stream(nil, answer(LabelSluice+1, 3, "")), ErrProtocol},
		{"twice", stream(map[Label][]byte{LabelVersion: append(answer(-5, 2, ""), answer(-5, 2, "")...)}), ErrProtocol},
		{"descending", stream(map[Label][]byte{LabelVersion: append(answer(-5, 2, ""), answer(-6, 2, "")...)}), ErrProtocol},
		{"one of ours again", stream(map[Label][]byte{LabelNProcs: answer(LabelNHosts, 2, "")}), ErrProtocol},
		{"DONE with data", stream(nil, header{cmdDone, 1}.append(nil)), ErrLimit},
		{"IMPI for DONE", stream(nil, appendImpi(nil, 2)), ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, err := joinOver(t, c.says)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.Len(t, j.Clients, 2)
		})
	}
}

// TestDisagree: all clients of ours find it, and the server reports who left.
func TestDisagree(t *testing.T) {
	v := serve(t, Server{Clients: 3})
	_, errs := dialAll(t, v.addr, 3, func(c *Config) { c.XSize = int32(100 + c.Rank/2) })
	for _, err := range errs {
		require.True(t, isOneOf(err, ErrDisagree, ErrLost), "%v", err)
	}
	require.True(t, slices.ContainsFunc(errs, func(err error) bool { return isOneOf(err, ErrDisagree) }))
	_, err := v.wait()
	require.ErrorIs(t, err, ErrLost)
}

// TestClose: a client that closes without FINI is reported.
func TestClose(t *testing.T) {
	v := serve(t, Server{Clients: 1})
	j, err := Dial(t.Context(), v.addr, config(0))
	require.NoError(t, err)
	require.NoError(t, j.Close())
	require.NoError(t, j.Finish())
	_, err = v.wait()
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "run, client 0")
}

// TestBadServer: what no server may say is a typed error, not a hang.
func TestBadServer(t *testing.T) {
	none := authReply{}.append(nil)
	size := appendImpi(nil, 1)
	begun := append(none[:8:8], size...)
	for _, c := range []struct {
		name string
		says []byte
		want error
	}{
		{"nothing", nil, ErrLost},
		{"method KEY", authReply{which: whichKey}.append(nil), ErrAuth},
		{"AUTH with data", authReply{len: 4}.append(nil), ErrProtocol},
		{"COLL for IMPI", append(none[:8:8], header{cmdColl, 4}.append(nil)...), ErrProtocol},
		{"IMPI of 3 bytes", append(none[:8:8], unhex(t, "494d5049 00000003 000000")...), ErrProtocol},
		{"job of 0", append(none[:8:8], appendImpi(nil, 0)...), ErrProtocol},
		{"job of 33", append(none[:8:8], appendImpi(nil, 33)...), ErrProtocol},
		{"another label", append(begun[:20:20], answer(LabelNHosts, 1, "....")...), ErrProtocol},
		{"not our bit", append(begun[:20:20], answer(LabelVersion, 2, "")...), ErrProtocol},
		{"bits too high", append(begun[:20:20], answer(LabelVersion, 3, "")...), ErrProtocol},
		{"answer of 2 GiB", append(begun[:20:20], header{cmdColl, maxPayload}.append(nil)...), ErrLimit},
		{"answer of 7 bytes", append(begun[:20:20], unhex(t, "434f4c4c 00000007 00001000000000")...), ErrProtocol},
		{"cut", append(begun[:20:20], answer(LabelVersion, 1, "12345678")[:20]...), ErrLost},
		{"DONE early", append(begun[:20:20], doneWire...), ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := joinOver(t, c.says)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// joinOver runs a client against a server that says that, whatever it hears.
func joinOver(t testing.TB, says []byte) (*Job, error) {
	here, there := net.Pipe()
	said := make(chan struct{})
	go func() {
		defer close(said)
		there.Write(says)
		there.Close()
	}()
	c := config(0)
	cfg, err := c.filled()
	require.NoError(t, err)
	j, err := join(t.Context(), unheard{here}, cfg)
	here.Close()
	<-said
	return j, err
}

// unheard is a connection whose other end takes all that is written.
type unheard struct{ net.Conn }

func (unheard) Write(b []byte) (int, error) { return len(b), nil }
