package sluice

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/verbs/ibv"
)

// Which ranks read a variable.
const (
	all  = "all"
	rank = "rank"
)

// variable is a row of docs/variables.md.
type variable struct{ name, scope, preset, meaning string }

// variableSections are the sections of docs/variables.md: the heading, the text above the table, and the
// table.
func variableSections() []struct {
	heading, text string
	list          []variable
} {
	own := map[string]string{} // scope and default of the variables of Join
	for _, v := range []variable{
		{boot.EnvRank, rank, "the launcher's", ""},
		{boot.EnvSize, all, "the launcher's", ""},
		{boot.EnvServer, all, "announced by rank 0", ""},
		{boot.EnvIMPIServer, all, "none", ""},
		{boot.EnvJob, all, "the launcher's", ""},
		{boot.EnvSecret, all, "the launcher's", ""},
		{boot.EnvSecretFile, rank, "none", ""},
		{boot.EnvInsecure, all, "a secret is needed", ""},
		{boot.EnvLocalRank, rank, "the launcher's", ""},
		{boot.EnvLocalSize, rank, "the launcher's", ""},
		{boot.EnvLauncher, all, "rank 0 runs it", ""},
	} {
		own[v.name] = v.scope + "|" + v.preset
	}
	var place []variable
	for _, v := range boot.Variables() {
		scope, preset, _ := strings.Cut(own[v.Name], "|")
		place = append(place, variable{v.Name, scope, preset, v.Meaning})
	}
	place = append(place, variable{"IMPI_AUTH_KEY", all, "none", "key with which clients prove to an IMPI server that they belong to the job"})
	s := coll.DefaultSettings()
	size := func(name string, preset int, meaning string) variable {
		return variable{name, all, fmt.Sprint(preset), meaning}
	}
	crossover := func(name, meaning string) variable { return size(name, channel.DefaultCrossover(name), meaning) }
	return []struct {
		heading, text string
		list          []variable
	}{
		{"The place of a rank", "A launcher sets these, or you do: [launchers.md](launchers.md).", place},
		{"Transports", "", []variable{
			{channel.EnvTransport, rank, "the order of `sluice info`", "comma-separated providers to try, in this order, and no others"},
			{ibv.EnvLibrary, rank, "the dynamic linker's", "the libibverbs to open"},
			{"SLUICE_ROCE_SHARE", rank, "0", "how many contexts may share an address and port 4791 (provider roce)"},
			{"SLUICE_ROCE_ACK", rank, "lazy", "`message`: acknowledge every message on its own (provider roce)"},
			{"SLUICE_XDP_SOCKET", rank, "/run/sluice/xdp.sock", "the socket of `sluice xdp-helper` (provider xdp)"},
			{"SLUICE_XDP_MODE", rank, "the better one that works", "`native` or `generic`: how a process that opens an interface itself attaches to it (provider xdp)"},
		}},
		{"Waiting", "", []variable{
			{channel.EnvWait, rank, "what fits", "how a rank waits for a message: `spin`, `yield` its CPU, or `sleep`; with a duration (`spin:50us`) it sleeps after that. `channel.WithWait` and `impi.Config.Wait` take it as well"},
		}},
		{"Tuning", "`bench tune` measures these and writes them into a file. `channel.WithTuning` takes them as well.\nA value of -1 means the default. Values are bytes unless the meaning says otherwise.", []variable{
			{channel.EnvTuningFile, rank, "none", "a file with lines NAME=value of the variables below and `SLUICE_TRANSPORT`; the environment overrides it"},
			size(coll.EnvXSize, s.XSize, "vectors from this size on use the algorithms for long vectors"),
			size(coll.EnvMaxLinear, s.MaxLinear, "short collectives are linear up to this many members, or hosts"),
			size(coll.EnvBlock, s.Block, "the smallest block for which halving a vector pays"),
			size(coll.EnvRingBlock, s.RingBlock, "blocks from this size on go around a ring"),
			size(coll.EnvPipeline, s.Pipeline, "vectors from this size on pass along a chain in segments"),
			size(coll.EnvSegment, s.Segment, "size of such a segment"),
			size(coll.EnvScatterBlock, s.ScatterBlock, "a broadcast with blocks from this size on is a scatter and an allgather"),
			size(coll.EnvBruckBlock, s.BruckBlock, "blocks of an alltoall from this size on go straight to their member"),
			size(coll.EnvPairBlock, s.PairBlock, "members exchange blocks of an alltoall from this size on in pairs"),
			{coll.EnvAlgorithm, all, "chosen by size", "algorithm for each kind of collective: [collectives.md](collectives.md)"},
			crossover(channel.EnvEagerTCP, "the longest message that is sent before its receiver is ready, over tcp"),
			crossover(channel.EnvEagerRDMA, "the same over RDMA"),
			crossover(channel.EnvPackTCP, "longer messages with shorter blocks than this are packed, over tcp"),
			crossover(channel.EnvPackRDMA, "the same over RDMA"),
			crossover(channel.EnvReadTCP, "the receiver reads blocks of the sender from this length on, over tcp"),
			crossover(channel.EnvReadRDMA, "the same over RDMA"),
		}},
		{"Filters and tests", "", []variable{
			{filter.EnvLimit, "a filter", fmt.Sprint(filter.DefaultLimit), "the longest chunk and answer; `sluice fanout` sets it to 64 MiB and two items of `--item-limit`"},
		}},
	}
}

// TestVariables: docs/variables.md lists all variables that the library and the command read, with the
// defaults that they have; -update writes it.
func TestVariables(t *testing.T) {
	var page strings.Builder
	page.WriteString("# Environment variables\n\n" +
		"Programs that use Sluice read these, and no others whose names begin with `SLUICE_` or `COLL_`,\n" +
		"besides those of launchers, which `sluice help launchers` lists. **all** says that every rank needs\n" +
		"the same value. Settings, size, job and secret are compared when the ranks connect, and a difference\n" +
		"is an error; an address may be written differently. **rank** says that each rank reads its own. Rank 0 warns of names that begin with `SLUICE_` and are not here.\n")
	var listed []string
	for _, section := range variableSections() {
		fmt.Fprintf(&page, "\n## %s\n\n", section.heading)
		if section.text != "" {
			page.WriteString(section.text + "\n\n")
		}
		page.WriteString("| variable | for | default | meaning |\n| --- | --- | --- | --- |\n")
		for _, v := range section.list {
			listed = append(listed, v.name)
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", v.name, v.scope, v.preset, v.meaning)
		}
	}
	page.WriteString("\nThe tests of Sluice read `SLUICE_TEST_LONG` and others: [CONTRIBUTING.md](../CONTRIBUTING.md).\n")

	name := regexp.MustCompile(`"((?:SLUICE|COLL|IMPI)_[A-Z_]+[A-Z])"`)
	var read []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bench", "examples", "internal/test", "internal/nettest", "internal/vm", "impi/interop", "verbs/verbstest"}, filepath.ToSlash(path)):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range name.FindAllSubmatch(b, -1) {
			read = append(read, string(m[1]))
		}
		return err
	}))
	slices.Sort(read)
	slices.Sort(listed)
	require.Equal(t, slices.Compact(read), listed)
	known := boot.KnownVariables()
	slices.Sort(known)
	require.Equal(t, slices.DeleteFunc(listed, func(name string) bool { return !strings.HasPrefix(name, "SLUICE_") }), known)

	file := filepath.Join("docs", "variables.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page.String()), 0o644))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, page.String(), string(b), "go test -run TestVariables . -update writes it")
}
