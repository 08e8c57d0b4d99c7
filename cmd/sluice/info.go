package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	_ "github.com/sluice-hpc/sluice/verbs/all"
	_ "github.com/sluice-hpc/sluice/verbs/roce"
)

func newInfo() *cobra.Command {
	var asJSON, job bool
	timeout := time.Minute
	cmd := &cobra.Command{
		Use:   "info [--job] [--json]",
		Short: "Show the providers and devices of this host, or what the ranks of a job use",
		Long:  infoHelp,
		Example: `  sluice info
  sluice info --json | jq '.devices[].name'
  sluice run -n 4 sluice info --job
  SLUICE_TRANSPORT=tcp mpirun -n 4 sluice info --job`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return &usageError{cmd, fmt.Errorf("timeout of %v", timeout)}
			}
			if job {
				return showJob(cmd, timeout, asJSON)
			}
			r := takeReport()
			err := write(cmd.OutOrStdout(), asJSON, r, r.print)
			if err == nil && !r.opened() {
				err = errors.New("no device could be opened")
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&job, "job", false, "as a rank of a job: connect to all others, and have rank 0 show what connects each pair")
	flags.DurationVar(&timeout, "timeout", timeout, "`duration` that joining and connecting, and then reporting, may take, with --job")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

const infoHelp = `Info shows what this host has for moving bytes: the limits that matter, each
provider and why it is not available, each device with its ports and addresses.
A device that cannot be opened is shown with its error; the exit status is 0
unless that is so with all of them. Those of xdp are not opened, which would attach a
program to the interface. The providers roce and xdp are for who asks for them by name.

With --job it is a program for the ranks of a job, under any launcher. Every
rank connects to every other, and rank 0 shows for each pair the provider and
the devices in use, and why other providers are not. They are tried in the order
in which info lists them, or in that of SLUICE_TRANSPORT ("ibv,tcp"; one alone
is forced), so nothing is said of those that come after the one in use. A pair
that cannot be connected is shown, and is no failure of info.

--json prints one object. Numbers are numbers, sizes are in bytes; what is not
known, or does not exist, is left out:

  schema                "` + infoSchema + `"; another one when a field changes its meaning
  host
    name, os, arch, kernel
    cpus, allowed_cpus  how many this process may use; their numbers
    memlock_bytes       what it may pin (ulimit -l); -1: without limit
    memlock_max_bytes   to which it may raise that
    dev_infiniband      whether there is a /dev/infiniband
    rdma_devices        those that the kernel has
    huge_pages[]        size_bytes, total, free
    transport           SLUICE_TRANSPORT
  providers[]           in order of preference
    name, reason
    available           "yes", "no" or "could not tell"
  devices[]
    provider, name, netdev, firmware, error
    not_opened          why info has not opened it
    rdma_device         the RDMA device of netdev, where this is none itself
    char_devices[]      path; error if it cannot be read and written
    numa_node, local_cpus
    hardware_strides    available, reason; of an RDMA device. They are not used
    limits              max_mr_size_bytes, max_msg_size_bytes, max_qp, max_qp_wr,
                        max_sge, max_sge_rd, max_inline_data_bytes, max_cq, max_cqe,
                        max_mr, max_pd, max_srq, max_srq_wr, max_qp_rd_atomic,
                        max_qp_init_rd_atom, atomic_cap, load_store,
                        on_demand_paging
    ports[]
      port, state, link_layer, max_mtu_bytes, active_mtu_bytes, netdev, error
      lid               of InfiniBand
      pkey_table_len, gid_table_len
      gids[]            index, gid; of RoCE also type, netdev
  errors[]              of providers that could not list their devices

and with --job

  schema                "` + jobSchema + `"
  size
  ranks[]
    rank, host, pid, transport
    peers[]
      rank, provider, device
      state             "up", or what is wrong
      not_used[]        provider, reason`

// write prints v as JSON, or with print for people.
func write(w io.Writer, asJSON bool, v any, print func(io.Writer) error) error {
	if !asJSON {
		return print(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
