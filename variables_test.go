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
	"github.com/sluice-hpc/sluice/internal/variable"
)

// numbers returns the defaults that are numbers, and the names of the settings that the ranks of a job compare.
func numbers() (defaults map[string]int, compared []string) {
	defaults = collNumbers(coll.DefaultSettings())
	defaults[filter.EnvLimit] = filter.DefaultLimit
	compared = coll.Variables()
	for _, name := range []string{channel.EnvEagerTCP, channel.EnvPackTCP, channel.EnvReadTCP, channel.EnvEagerRDMA, channel.EnvPackRDMA, channel.EnvReadRDMA} {
		defaults[name] = channel.DefaultCrossover(name)
		compared = append(compared, name)
	}
	return defaults, compared
}

func collNumbers(s coll.Settings) map[string]int {
	return map[string]int{
		coll.EnvXSize: s.XSize, coll.EnvMaxLinear: s.MaxLinear, coll.EnvBlock: s.Block, coll.EnvRingBlock: s.RingBlock,
		coll.EnvPipeline: s.Pipeline, coll.EnvSegment: s.Segment, coll.EnvScatterBlock: s.ScatterBlock,
		coll.EnvBruckBlock: s.BruckBlock, coll.EnvPairBlock: s.PairBlock,
	}
}

// ofXSize says how a default depends on COLL_XSIZE: "" if it does not.
func ofXSize(t *testing.T, name string) string {
	x := coll.DefaultSettings().XSize
	once, twice := collNumbers(coll.DefaultSettings())[name], collNumbers(coll.DeriveSettings(2*x, 4))[name]
	switch {
	case name == coll.EnvXSize || once == twice:
		return ""
	case once > x:
		require.Equal(t, []int{0, 2 * once}, []int{once % x, twice}, name)
		return fmt.Sprintf("%d·`%s` = ", once/x, coll.EnvXSize)
	}
	require.Equal(t, []int{0, 2 * once}, []int{x % once, twice}, name)
	return fmt.Sprintf("`%s`/%d = ", coll.EnvXSize, x/once)
}

// TestVariables: docs/variables.md lists all variables that the library and the command read, with the
// defaults that they have; -update writes it.
func TestVariables(t *testing.T) {
	var page strings.Builder
	page.WriteString("# Environment variables\n\n" +
		"Programs that use Sluice read these, and no others whose names begin with `SLUICE_` or `COLL_`,\n" +
		"besides those of launchers, which `sluice help launchers` lists. **all** says that every rank needs\n" +
		"the same value. Of these, the variables under Tuning, and size, job and secret, are compared when the\n" +
		"ranks connect, and a difference is an error; others are not compared. **rank** says that each rank reads\n" +
		"its own. Rank 0, and each rank that no launcher has started, warns of names that begin with\n" +
		"`SLUICE_` or `COLL_` and are not here.\n")
	place := boot.Variables()
	for _, v := range boot.ForeignVariables() {
		if strings.HasPrefix(v.Name, "IMPI_") {
			place = append(place, v)
		}
	}
	defaults, compared := numbers()
	var listed []string
	for _, section := range append([]variable.Section{
		{Heading: "The place of a rank", Text: "A launcher sets these, or you do: [launchers.md](launchers.md).", List: place},
	}, variable.Sections()...) {
		fmt.Fprintf(&page, "\n## %s\n\n", section.Heading)
		if section.Text != "" {
			page.WriteString(section.Text + "\n\n")
		}
		page.WriteString("| variable | for | default | meaning |\n| --- | --- | --- | --- |\n")
		for _, v := range section.List {
			listed = append(listed, v.Name)
			if v.Default == "" {
				require.Contains(t, defaults, v.Name)
				v.Default = ofXSize(t, v.Name) + fmt.Sprint(defaults[v.Name])
			}
			if section.Heading == "Tuning" {
				require.Equal(t, slices.Contains(compared, v.Name), v.For == variable.Job, v.Name)
			}
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", v.Name, v.For, v.Default, v.Meaning)
		}
	}
	require.Subset(t, listed, compared)
	page.WriteString("\nThe tests of Sluice read `SLUICE_TEST_LONG` and others: [CONTRIBUTING.md](../CONTRIBUTING.md).\n")

	name := regexp.MustCompile(`"((?:SLUICE|COLL|IMPI)_[A-Z_]+[A-Z])"`)
	var read []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bench", "examples", "internal/test", "internal/nettest", "internal/variable", "internal/vm", "impi/interop", "verbs/verbstest"}, filepath.ToSlash(path)):
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
	require.Equal(t, slices.DeleteFunc(listed, func(name string) bool { return strings.HasPrefix(name, "IMPI_") }), known)

	file := filepath.Join("docs", "variables.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page.String()), 0o644))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, page.String(), string(b), "go test -run TestVariables . -update writes it")
}
