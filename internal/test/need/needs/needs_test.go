package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parts makes logs: lines of them separated by semicolons, fields by commas.
func parts(t *testing.T, logs ...string) (list []part) {
	for _, log := range logs {
		text := strings.ReplaceAll(strings.ReplaceAll(log, ";", "\n"), ",", "\t")
		if text != "" {
			text += "\n"
		}
		p, err := parse(text)
		require.NoError(t, err)
		list = append(list, p)
	}
	return list
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name, machine string
		logs          []string
		want          []planned
	}{
		{"nothing missing", "guest", []string{"channel,TestA,root,met"}, nil},
		{"another need", "guest", []string{"channel,TestA,root,missing"}, nil},
		{"by package", "guest",
			[]string{"impi,TestB/ibv,an RDMA device,missing;channel,TestB/ibv,an RDMA device,missing;channel,TestA,the guest of internal/vm,missing;channel,TestA/shm,root,met"},
			[]planned{{"channel", `^TestA$|^TestB$/^ibv$`}, {"impi", `^TestB$/^ibv$`}}},
		{"characters of patterns", "guest", []string{"channel,TestC/a|b/1.5_(x),an RDMA device,missing"}, []planned{{"channel", `^TestC$/^a\|b$/^1\.5_\(x\)$`}}},
		{"user", "user", []string{"channel,TestA,a user whose locked memory is limited,missing;channel,TestB,root,missing"}, []planned{{"channel", "^TestA$"}}},
		{"networks", "networks", []string{"qmp,TestA/roce-networks,a device of provider roce-networks,missing;qmp,TestA/roce,a device of provider roce,missing"},
			[]planned{{"qmp", "^TestA$/^roce-networks$"}}},
		{"it has run in another part", "user", []string{"channel,TestA,a user whose locked memory is limited,missing", "channel,TestA,a user whose locked memory is limited,met"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, plan(parts(t, c.logs...), machines[c.machine])) })
	}
}

func TestCheck(t *testing.T) {
	const rdma, long = "an RDMA device", "long tests"
	for _, c := range []struct {
		name string
		logs []string
		want found
	}{
		{"met", []string{"channel,TestA,root,met"}, found{tests: 1}},
		{"met in another part", []string{"channel,TestA," + rdma + ",missing", "channel,TestA," + rdma + ",met"}, found{tests: 1}},
		{"each met, but not both at a time", []string{"channel,TestA," + rdma + ",missing", "channel,TestA," + rdma + ",met;channel,TestA,root,missing"},
			found{tests: 1, wrong: []string{"channel: TestA has run nowhere: it needs an RDMA device; root"}}},
		{"of another package", []string{"channel,TestA,root,missing", "impi,TestA,root,met"},
			found{tests: 2, wrong: []string{"channel: TestA has run nowhere: it needs root"}}},
		{"with what it is part of", []string{"channel,TestA/ibv," + rdma + ",missing", "channel,TestA," + long + ",missing"},
			found{tests: 2, wrong: []string{"channel: TestA has run nowhere: it needs long tests", "channel: TestA/ibv has run nowhere: it needs an RDMA device; long tests"}}},
		{"not of another of that prefix", []string{"channel,TestAB," + rdma + ",missing", "channel,TestA," + long + ",missing"},
			found{tests: 2, wrong: []string{"channel: TestA has run nowhere: it needs long tests", "channel: TestAB has run nowhere: it needs an RDMA device"}}},
		{"capability", []string{"verbs/tcp,TestA/SRQ,SRQ,lacks;verbs/tcp,TestB,atomics,lacks", "verbs/shm,TestA/SRQ,SRQ,has"},
			found{wrong: []string{"no device that was tested has atomics"}}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, check(parts(t, c.logs...))) })
	}
}

func TestParse(t *testing.T) {
	for _, bad := range []string{"\n", "channel\tTestA\troot\n", "channel\tTestA\troot\tperhaps\n", "channel\tTestA\troot\tmet\tmet\n"} {
		_, err := parse(bad)
		require.Error(t, err, "%q", bad)
	}
}

func TestRun(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(log, []byte("channel\tTestA\troot\tmissing\n"), 0o600))
	require.ErrorContains(t, run([]string{"check", log}), "1 needs have been met nowhere")
	require.NoError(t, run([]string{"plan", "guest", log}))
	require.NoError(t, os.WriteFile(log, []byte("channel\tTestA\troot\tmet\n"), 0o600))
	require.NoError(t, run([]string{"check", log}))
	for _, bad := range [][]string{nil, {"plan", "moon", log}, {"check"}, {"plan", "guest"}, {"check", filepath.Join(t.TempDir(), "none")}, {"guess", log}} {
		require.Error(t, run(bad), "%q", bad)
	}
}
