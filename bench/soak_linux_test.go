package main

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// A short soak over every transport that needs no rights: it does something on all
// layers, and faults are reported by the ranks that must report them.
func TestSoak(t *testing.T) {
	need.Long(t) // CI soaks by the command, too
	var got soakTotals
	require.NoError(t, json.Unmarshal(output(t, "soak", "-t", "5s", "-n", "3", "--network=false", "--seed", "7", "--json"), &got))
	require.Positive(t, got.Jobs)
	for _, layer := range []string{layerChannel, "collectives", layerIMPI, layerQMP} {
		require.Positive(t, got.Operations[layer], layer)
	}
	require.Empty(t, got.Said)
}

// The figures as CSV are those of JSON, each on a line.
func TestSoakCSV(t *testing.T) {
	t.Parallel()
	totals := soakTotals{Seed: 7, Seconds: 1.5, Jobs: 3, Operations: map[string]int64{"qmp": 2, "impi": 1}, Bytes: 9, Faults: map[string]int64{faultKill: 4}, Leaks: 1}
	var b strings.Builder
	require.NoError(t, totals.writeCSV(&b))
	require.Equal(t, strings.Join([]string{"figure,kind,value", "seed,,7", "seconds,,1.5", "jobs,,3", "operations,impi,1", "operations,qmp,2", "bytes,,9",
		"faults,kill,4", "errors,,0", "unasked,,0", "hangs,,0", "corrupt,,0", "leaks,,1", ""}, "\n"), b.String())
}

// What ranks say counts as it is meant, and a rank that does not end as hanging.
func TestSoakJudges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says   string
		victim int
		fault  string
		want   soakTotals
	}{
		"well":                  {`{"rank":0,"operations":{"impi":3},"bytes":7}`, -1, faultNone, soakTotals{Operations: map[string]int64{"impi": 3}, Bytes: 7}},
		"corrupt":               {`{"rank":0,"operations":{},"error":"byte 3","corrupt":true}`, -1, faultNone, soakTotals{Corrupt: 1}},
		"corrupt beside a kill": {`{"rank":0,"operations":{},"error":"byte 3","corrupt":true,"mourned":true}`, 1, faultNone, soakTotals{Corrupt: 1}},
		"mourns":                {`{"rank":0,"operations":{},"error":"peer died","mourned":true}`, 1, faultNone, soakTotals{Errors: 1}},
		"mourns the living":     {`{"rank":0,"operations":{},"error":"peer died","mourned":true}`, -1, faultNone, soakTotals{Unasked: 1}},
		"another error":         {`{"rank":0,"operations":{},"error":"timeout"}`, 1, faultNone, soakTotals{Unasked: 1}},
		"leaks":                 {`{"rank":0,"operations":{},"leaks":"goroutine"}`, -1, faultNone, soakTotals{Leaks: 1}},
		"late":                  {`{"rank":0,"operations":{},"late":1}`, -1, faultLoss, soakTotals{Unasked: 1}},
		"late beside a stop":    {`{"rank":0,"operations":{},"late":1}`, -1, faultStall, soakTotals{}},
		"late beside a kill":    {`{"rank":0,"operations":{},"late":1}`, 1, faultKill, soakTotals{}},
		"says nothing":          {``, -1, faultNone, soakTotals{Unasked: 1}},
		"says something else":   {`{"rank":0,"more":1}`, -1, faultNone, soakTotals{Unasked: 1}},
	} {
		p := newSoakProcess(exec.Command("printf", "up\n%s", c.says))
		require.NoError(t, p.cmd.Run())
		close(p.end)
		got := soakTotals{Operations: map[string]int64{}}
		j := soakJob{length: soakPatience, fault: c.fault}
		j.judge(t.Context(), &got, []*soakProcess{p}, c.victim)
		if c.want.Operations == nil {
			c.want.Operations = map[string]int64{}
		}
		require.EqualValues(t, c.want.Unasked+c.want.Corrupt+c.want.Leaks, len(got.Said), name)
		got.Said = nil
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.want.Unasked+c.want.Corrupt+c.want.Leaks == 0, got.verdict() == nil, name)
	}

	// Its time, and the patience, are over.
	p := newSoakProcess(exec.CommandContext(context.Background(), "sleep", "1000"))
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.end)
	}()
	got := soakTotals{Operations: map[string]int64{}}
	j := soakJob{length: -soakPatience}
	j.judge(t.Context(), &got, []*soakProcess{p}, -1)
	require.EqualValues(t, 1, got.Hangs)
	require.Len(t, got.Said, 1)
	var bad *SoakError
	require.ErrorAs(t, got.verdict(), &bad)
}
