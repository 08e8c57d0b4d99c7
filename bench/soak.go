package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// soakOptions are the flags of bench soak.
type soakOptions struct {
	time    time.Duration
	ranks   int
	seed    uint64
	network bool
}

// SoakError: a soak has met what must not be.
type SoakError struct{ Unasked, Hangs, Corrupt, Leaks int64 }

func (e *SoakError) Error() string {
	return fmt.Sprintf("soak: %d errors that nothing explains, %d hangs, %d corruptions, %d leaks", e.Unasked, e.Hangs, e.Corrupt, e.Leaks)
}

func newSoakCommand(out *outputOptions) *cobra.Command {
	var o soakOptions
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Mixed traffic on all layers, with kills, stalls and cut links",
		Long: `Starts one job after the other, for some seconds each, in which all ranks do what a
seed says: messages of channels, collectives, messages of impi, sums of qmp, each checked byte by
byte. One thing at a time goes wrong in a job: a rank is killed (SIGKILL) at a random moment, or
stopped and continued; as root, ranks are in two network name spaces, and the link between loses
packets or all of them for a while (nftables). Kills come at any time, also while the job is joined
and connected; stalls and losses when all are connected, for a provider has a second to prove itself.

Survivors of a rank that was killed have to say so; nobody else has to say anything, nobody to
hang, nothing to be left when a rank has closed its node. Exit status 1: something of that
was not so.`,
		Args: noArgs,
		RunE: caught(func(cmd *cobra.Command, _ []string) {
			if o.seed == 0 {
				o.seed = uint64(time.Now().UnixNano())
			}
			out.check()
			inRange("ranks", o.ranks, 2, 64)
			switch {
			case out.listen != "" || out.html != "":
				must(usagef("soak: want neither --listen nor --html"))
			case o.time <= 0 || o.time > 1000*time.Hour:
				must(usagef("--time %v: want more than 0, at most 1000h", o.time))
			}
			must(o.run(cmd.Context(), out))
		}),
	}
	f := cmd.Flags()
	f.DurationVarP(&o.time, "time", "t", time.Minute, "how long")
	f.IntVarP(&o.ranks, "ranks", "n", 4, "ranks of each job")
	f.Uint64Var(&o.seed, "seed", 0, "repeats what is done and what goes wrong, though not the moments to the microsecond (default the time)")
	f.BoolVar(&o.network, "network", true, "as root: two networks, with a link that can be cut")
	cmd.AddCommand(newSoakRankCommand())
	return cmd
}

// newSoakRankCommand is what a soak starts.
func newSoakRankCommand() *cobra.Command {
	var d time.Duration
	var seed uint64
	cmd := &cobra.Command{
		Use: "rank", Hidden: true, Args: noArgs,
		RunE: caught(func(cmd *cobra.Command, _ []string) { soakRank(cmd.Context(), cmd.OutOrStdout(), d, seed) }),
	}
	cmd.Flags().DurationVar(&d, "time", 0, "")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "")
	return cmd
}
