//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/internal/rdmadev/rdmadevtest"
	"github.com/sluice-hpc/sluice/verbs"
)

func init() {
	tests = append(tests,
		test{"info", testInfo},
		test{"info as JSON", testInfoJSON},
		test{"info of a job", testInfoJob},
		test{"info of a job as JSON", testInfoJobJSON},
		test{"info of a job that does not start as meant", testInfoJobWarns},
		test{"info of a job of one", testInfoAlone},
		test{"info of a wrong transport", testInfoWrong},
	)
}

func testInfo(t *testing.T, b bed) {
	cmd := b.command(t, "", "info")
	cmd.Env = append(cmd.Env, "SLUICE_TRANSPORT=tcp")
	e := succeed(t, cmd)
	require.Empty(t, e.stderr)
	require.NotRegexp(t, `(?m) $`, e.stdout)
	for _, want := range []string{
		`^host +\S+\nsystem +` + runtime.GOOS + ` .*` + runtime.GOARCH + `\nCPUs +\d+`,
		`(?m)^SLUICE_TRANSPORT +tcp\n\n`,
		`(?m)^provider +available +why$`,
		`(?m)^tcp +yes$`,
		`(?m)^device tcp_\w+\n  provider  tcp\n  netdev    \w+\n  version   1\.0\n  message   up to 1 GiB, of 32 SGEs, 32 in an RDMA_READ; 1 KiB inline\n  QPs       `,
		`(?m)^  port 1    ACTIVE, link layer ETHERNET, \w+, MTU \d+ of 4096, 1 pkeys, \d+ GIDs\n    GID 0   ::ffff:127\.0\.0\.1$`,
	} {
		require.Regexp(t, want, e.stdout)
	}
	if runtime.GOOS != "linux" {
		require.Regexp(t, `(?m)^shm +no +needs `, e.stdout)
		return
	}
	require.Regexp(t, `(?m)^may pin +.+ \(ulimit -l\)\nRDMA +\S.*; .*/dev/infiniband`, e.stdout)
	require.Regexp(t, `(?m)^shm +yes$`, e.stdout)
	require.Regexp(t, `(?m)^device shm0
  provider  shm
  version   1\.0
  message   up to 1 GiB, of 32 SGEs, 32 in an RDMA_READ; 1 KiB inline
  QPs       65536, of 32768 WRs; RDMA_READs and atomics: 16 answered at once, 16 outstanding
  SRQs      65536, of 32768 WRs
  CQs       65536, of 1048576 entries
  MRs       8192, of up to 1 TiB
  PDs       65536
  atomics   GLOB
  memory    of a peer can be mapped
  port 1    ACTIVE, link layer UNSPECIFIED, MTU 4096 of 4096, 1 pkeys, 1 GIDs
    GID 0   \S+$`, e.stdout)
}

// decode reads JSON that must have no field that the help does not name.
func decode(t *testing.T, text string, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(v), text)
	require.False(t, d.More())
}

func testInfoJSON(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "", "info", "--json"))
	var r infoReport
	decode(t, e.stdout, &r)
	require.Equal(t, infoSchema, r.Schema)
	require.Equal(t, runtime.GOOS, r.Host.OS)
	require.Equal(t, runtime.NumCPU(), r.Host.CPUs)
	require.Empty(t, r.Errors)
	require.Len(t, r.Providers, len(verbs.Providers())-1, "the fake is of the tests")
	require.Contains(t, r.Providers, providerEntry{Name: "tcp", Available: "yes"})
	devices := map[string]deviceEntry{}
	for _, d := range r.Devices {
		require.Empty(t, d.Error)
		if d.NotOpened != "" {
			require.Equal(t, "xdp", d.Provider)
			continue
		}
		require.NotNil(t, d.Limits)
		require.Len(t, d.Ports, 1)
		devices[d.Name] = d
	}
	if runtime.GOOS != "linux" {
		return
	}
	require.Equal(t, r.Host.CPUs, len(r.Host.AllowedCPUs))
	require.NotNil(t, r.Host.MemlockBytes)
	lo := devices["tcp_lo"]
	require.Equal(t, "lo", lo.Netdev)
	require.EqualValues(t, 1<<30, lo.Limits.MaxMsgSize)
	require.False(t, lo.Limits.LoadStore)
	port := lo.Ports[0]
	require.Equal(t, gidEntry{Index: 0, GID: "::ffff:127.0.0.1"}, port.GIDs[0])
	port.GIDs, port.GIDTableLen = nil, 0
	require.Equal(t, portEntry{Port: 1, State: "ACTIVE", LinkLayer: "ETHERNET", MaxMTUBytes: 4096, ActiveMTUBytes: 4096, PKeyTableLen: 1, Netdev: "lo"}, port)
	require.True(t, devices["shm0"].Limits.LoadStore)
}

func testInfoJob(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "", "run", "-n", "3", b.sluice, "info", "--job"))
	e.silent(t)
	ranks, pairs, ok := strings.Cut(e.stdout, "\n\n")
	require.True(t, ok)
	require.Regexp(t, `^rank  host +pid +SLUICE_TRANSPORT\n0     \S+ +\d+\n1     \S+ +\d+\n2     \S+ +\d+$`, ranks)
	lines := strings.Split(strings.TrimSuffix(pairs, "\n"), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, []string{"ranks", "provider", "device", "not", "used"}, strings.Fields(lines[0]))
	for i, pair := range []string{"0 1", "0 2", "1 2"} {
		if runtime.GOOS == "linux" {
			require.Regexp(t, "^"+pair+` +shm +shm0\b`, lines[1+i])
		} else {
			require.Regexp(t, "^"+pair+` +tcp +tcp_\S+ +shm: no: needs `, lines[1+i])
		}
	}
}

func testInfoJobJSON(t *testing.T, b bed) {
	file := filepath.Join(t.TempDir(), "tuning")
	require.NoError(t, os.WriteFile(file, []byte("SLUICE_TRANSPORT=tcp\n"), 0o600))
	cmd := b.command(t, "", "run", "-n", "3", b.sluice, "info", "--job", "--json")
	cmd.Env = append(cmd.Env, channel.EnvTuningFile+"="+file)
	e := succeed(t, cmd)
	var r jobReport
	decode(t, e.stdout, &r)
	require.Equal(t, jobSchema, r.Schema)
	require.Equal(t, 3, r.Size)
	require.Len(t, r.Ranks, 3)
	for i, e := range r.Ranks {
		require.Equal(t, i, e.Rank)
		require.Equal(t, "tcp", e.Transport)
		require.NotZero(t, e.PID)
		require.Len(t, e.Peers, 2)
		for k, p := range e.Peers {
			require.Equal(t, [][]int{{1, 2}, {0, 2}, {0, 1}}[i][k], p.Rank)
			require.Equal(t, "tcp", p.Provider)
			require.True(t, strings.HasPrefix(p.Device, "tcp_lo"), p.Device)
			require.Equal(t, "up", p.State)
			if runtime.GOOS == "linux" {
				require.Contains(t, p.NotUsed, notUsedEntry{"shm", "not in SLUICE_TRANSPORT"})
			}
		}
	}
}

// testInfoJobWarns: what explains a job that does not start is on standard error.
func testInfoJobWarns(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "", "run", "-n", "2", "-x", "SLUICE_TRANSPRT=tcp", b.sluice, "info", "--job"))
	require.Contains(t, e.stderr, "SLUICE_TRANSPRT (is it SLUICE_TRANSPORT?)")
}

// testJobByServer: a server brings the ranks of a job of channels together.
func testJobByServer(t *testing.T, b bed) {
	const n = 3
	server := b.command(t, "", "server", "-n", strconv.Itoa(n), "--addr", "127.0.0.1:0")
	server.Env = append(server.Env, keyVariable+"=271828")
	var log bytes.Buffer
	server.Stderr = &log
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	ends := make([]ending, n)
	var group sync.WaitGroup
	for rank := range n {
		cmd := b.command(t, "", "info", "--job")
		cmd.Env = append(cmd.Env, boot.EnvIMPIServer+"="+strings.TrimSpace(addr), keyVariable+"=271828", boot.EnvRank+"="+strconv.Itoa(rank), boot.EnvSecret+"="+strings.Repeat("5a", 16))
		group.Go(func() { ends[rank] = finish(t, cmd) })
	}
	group.Wait()
	for _, e := range ends {
		require.Zero(t, e.status, e.stderr)
	}
	require.Regexp(t, `(?s)^rank  host .*\n2     .*\n\nranks .*\n1 2 `, ends[0].stdout)
	require.NoError(t, server.Wait(), log.String())
}

func testInfoAlone(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "", "info", "--job"))
	require.Regexp(t, `^rank  host +pid +SLUICE_TRANSPORT\n0     \S+ +\d+\n$`, e.stdout)
}

func testInfoWrong(t *testing.T, b bed) {
	cmd := b.command(t, "", "run", "-n", "2", b.sluice, "info", "--job")
	cmd.Env = append(cmd.Env, "SLUICE_TRANSPORT=avian")
	e := finish(t, cmd)
	require.Equal(t, 1, e.status)
	require.Empty(t, e.stdout)
	require.Contains(t, e.stderr, `sluice info: channel: join: invalid argument: SLUICE_TRANSPORT="avian": provider "avian" has no device here (this program links no provider of that name); usable here: `)
}

// TestInfoHelp: every field of the JSON output is in the help.
func TestInfoHelp(t *testing.T) {
	var fields func(reflect.Type) []string
	fields = func(v reflect.Type) (names []string) {
		switch v.Kind() {
		case reflect.Pointer, reflect.Slice:
			return fields(v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				name, _, _ := strings.Cut(v.Field(i).Tag.Get("json"), ",")
				require.NotEmpty(t, name, v.Field(i).Name)
				names = append(append(names, name), fields(v.Field(i).Type)...)
			}
		}
		return names
	}
	words := regexp.MustCompile(`\w+`).FindAllString(infoHelp, -1)
	for _, name := range append(fields(reflect.TypeFor[infoReport]()), fields(reflect.TypeFor[jobReport]())...) {
		require.Contains(t, words, name)
	}
}

// hca is a provider whose devices are in the tree of rdmadevtest, except mlx5_9, which cannot
// be opened.
type hca struct{}

func (hca) Name() string { return "hca" }
func (hca) Rank() int    { return 10 }
func (hca) Probe() verbs.Probe {
	return verbs.Probe{Answer: verbs.Unknown, Reason: "no probe was made"}
}
func (hca) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: "mlx5_0", Netdev: "eth2"}, {Name: "mlx5_1"}, {Name: "mlx5_9"}}, nil
}
func (hca) Open(device string, _ verbs.Config) (verbs.ProviderContext, error) {
	if device == "mlx5_9" {
		return nil, verbs.Errorf(device, "open", verbs.ErrNoDevice, "it has been pulled out")
	}
	return hcaContext{device: device}, nil
}

func init() { verbs.Register(hca{}) }

// hcaContext only answers queries.
type hcaContext struct {
	verbs.ProviderContext
	device string
}

func (c hcaContext) Close() error { return nil }

func (c hcaContext) QueryDevice() (verbs.DeviceAttr, error) {
	ports := map[string]int{"mlx5_0": 1, "mlx5_1": 2}[c.device]
	return verbs.DeviceAttr{FWVer: "16.35.2000", MaxMRSize: 1<<64 - 1, MaxMsgSize: 1 << 31, MaxQP: 10, MaxQPWR: 11, MaxSGE: 12, MaxSGERd: 13, MaxInlineData: 100, MaxCQ: 15, MaxCQE: 16,
		MaxMR: 17, MaxPD: 18, MaxSRQ: 19, MaxSRQWR: 20, MaxQPRdAtomic: 21, MaxQPInitRdAtom: 22, AtomicCap: verbs.AtomicHCA, PhysPortCnt: ports}, nil
}

func (c hcaContext) QueryPort(port int) (verbs.PortAttr, error) {
	switch {
	case c.device == "mlx5_0":
		return verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU1024, LinkLayer: verbs.LinkLayerEthernet, GIDTblLen: 4, PKeyTblLen: 1, Netdev: "eth2"}, nil
	case port == 2:
		return verbs.PortAttr{}, verbs.Errorf(c.device, "query port", verbs.ErrNotSupported, "of port 2")
	}
	return verbs.PortAttr{State: verbs.PortInit, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU2048, LinkLayer: verbs.LinkLayerInfiniBand, GIDTblLen: 1, PKeyTblLen: 128, LID: 77}, nil
}

func (c hcaContext) QueryGID(_, index int) (verbs.GID, error) {
	switch {
	case index == 3:
		return verbs.GID{}, verbs.Errorf(c.device, "query GID", verbs.ErrNotSupported, "of index 3")
	case c.device == "mlx5_0" && index == 0: // not used
		return verbs.GID{}, nil
	case c.device == "mlx5_0":
		return verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, nil
	}
	return verbs.GID{0: 0xfe, 1: 0x80, 15: 7}, nil
}

// TestRDMADevices: the report has what sysfs and the provider know about a device; a query that
// fails does not hide the rest.
func TestRDMADevices(t *testing.T) {
	before := rdmadev.Sysfs
	rdmadev.Sysfs = rdmadevtest.TwoNodes(t)
	t.Cleanup(func() { rdmadev.Sysfs = before })
	r := takeReport()
	var text bytes.Buffer
	for i := range r.Devices {
		if r.Devices[i].Provider == "hca" {
			r.Devices[i].print(&text)
		}
	}
	limits := `  version    16.35.2000
  NUMA node  %s
  strides    in hardware: could not tell: %s
  message    up to 2 GiB, of 12 SGEs, 13 in an RDMA_READ; 100 B inline
  QPs        10, of 11 WRs; RDMA_READs and atomics: 21 answered at once, 22 outstanding
  SRQs       19, of 20 WRs
  CQs        15, of 16 entries
  MRs        17, of up to any number of bytes
  PDs        18
  atomics    HCA
`
	require.Equal(t, `device mlx5_0
  provider   hca
  netdev     eth2
`+fmt.Sprintf(limits, "0, CPUs 0-3,8-11", "adapters of mlx5_core may have UMR, which is not used: it could not be measured")+`  port 1     ACTIVE, link layer ETHERNET, eth2, MTU 1024 of 4096, 1 pkeys, 4 GIDs
  port 1     error: verbs mlx5_0: query GID: not supported: of index 3
    GID 1    ::ffff:10.0.0.1, IB/RoCE v1, eth2
    GID 2    ::ffff:10.0.0.1, RoCE v2, eth2.7
device mlx5_1
  provider   hca
`+fmt.Sprintf(limits, "2, CPUs 4-7,12-15", "its driver is not known")+`  port 1     INIT, link layer INFINIBAND, ib0, MTU 2048 of 4096, LID 77, 128 pkeys, 1 GIDs
    GID 0    fe80::7
  port 2     error: verbs mlx5_1: query port: not supported: of port 2
device mlx5_9
  provider  hca
  error     verbs mlx5_9: open: no such device: it has been pulled out
`, text.String())

	require.Contains(t, r.Providers, providerEntry{"hca", "could not tell", "no probe was made"})
	require.True(t, r.opened())
	require.Equal(t, []string{"mlx5_0", "mlx5_1", "rxe0"}, r.Host.RDMADevices)
	text.Reset()
	require.NoError(t, r.print(&text))
	if runtime.GOOS == "linux" {
		require.Regexp(t, `(?m)^RDMA +mlx5_0, mlx5_1, rxe0; `, text.String())
	}
	require.Regexp(t, `(?m)^hca +could not tell +no probe was made$`, text.String())

	none := infoReport{Devices: r.Devices[:0:0], Errors: []string{"provider hca: out of order"}}
	for _, d := range r.Devices {
		if d.Name == "mlx5_9" {
			none.Devices = append(none.Devices, d)
		}
	}
	require.False(t, none.opened())
	text.Reset()
	require.NoError(t, none.print(&text))
	require.Contains(t, text.String(), "\nerror: provider hca: out of order\n")
}

// TestPairs: the table of pairs shows what either rank knows.
func TestPairs(t *testing.T) {
	r := jobReport{Size: 3, Ranks: []rankEntry{
		{Rank: 0, Host: "a", PID: 10, Peers: []peerEntry{
			{Rank: 1, Provider: "ibv", Device: "mlx5_0", State: "up", NotUsed: []notUsedEntry{{"shm", "nothing\nhas come"}}},
			{Rank: 2, Provider: "ibv", Device: "mlx5_0", State: "peer died"}}},
		{Rank: 1, Host: "b", PID: 100, Transport: "ibv", Peers: []peerEntry{
			{Rank: 0, Provider: "ibv", Device: "mlx5_1", State: "up", NotUsed: []notUsedEntry{{"shm", "other words"}, {"tcp", "not in SLUICE_TRANSPORT"}}}}},
		{Rank: 2, Host: "b", PID: 5},
	}}
	var b bytes.Buffer
	require.NoError(t, r.print(&b))
	require.Equal(t, `rank  host  pid  SLUICE_TRANSPORT
0     a     10
1     b     100  ibv
2     b     5

ranks  provider  device          not used
0 1    ibv       mlx5_0, mlx5_1  shm: nothing; has come; tcp: not in SLUICE_TRANSPORT
0 2    none                      peer died
1 2    none                      not declared
`, b.String())
}

// TestInfoPages: it says which pages memory of Alloc has, and how to get large ones.
func TestInfoPages(t *testing.T) {
	pool := func(size, free int64) []hugePageEntry { return []hugePageEntry{{size, 8, free}} }
	for _, c := range []struct {
		host        hostEntry
		says, lacks string
	}{
		{hostEntry{}, "host", "Alloc"},
		{hostEntry{SharedHuge: "never"}, "pages of 4 KiB; large ones: sysctl vm.nr_hugepages=N, or echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled\n", "pool"},
		{hostEntry{SharedHuge: "deny"}, "pages of 4 KiB; large ones: ", "pool"},
		{hostEntry{SharedHuge: "advise"}, "huge pages where they fit (shmem_enabled is advise)\n", "4 KiB"},
		{hostEntry{SharedHuge: "never", HugePages: pool(2<<20, 3)}, "from 2 MiB on huge pages of the pool, while there are any; then pages of 4 KiB", "where they fit"},
		{hostEntry{SharedHuge: "never", HugePages: pool(2<<20, 0)}, "pages of 4 KiB; large ones: ", "of the pool"},
		{hostEntry{SharedHuge: "never", HugePages: pool(1<<30, 3)}, "pages of 4 KiB; large ones: ", "of the pool"},
	} {
		var b bytes.Buffer
		require.NoError(t, (&infoReport{Host: c.host}).print(&b))
		require.Contains(t, b.String(), c.says)
		require.NotContains(t, b.String(), c.lacks)
	}
}

func TestTexts(t *testing.T) {
	for n, want := range map[int64]string{-1: "any number of bytes", 0: "0 B", 100: "100 B", 1024: "1 KiB", 65_537: "65537 B", 8 << 20: "8 MiB", 1 << 50: "1024 TiB"} {
		require.Equal(t, want, sizeText(n))
	}
	for want, list := range map[string][]int{"": nil, "3": {3}, "0-3,8": {0, 1, 2, 3, 8}, "0,2,4-5": {0, 2, 4, 5}} {
		require.Equal(t, want, listText(list))
	}
}
