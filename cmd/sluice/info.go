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
				return &usageError{cmd, fmt.Errorf("--timeout is %v: it must be above 0", timeout)}
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
	flags.BoolVar(&job, "job", false, "as a rank of a job: connect to all other ranks; rank 0 shows what connects each pair")
	flags.DurationVar(&timeout, "timeout", timeout, "with --job, the `duration` that joining and connecting may take, and then reporting again")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

const infoHelp = `Info shows what this host has for moving bytes: the limits that matter, each
provider and why it is not available, and each device with its ports and addresses.
A device that cannot be opened is shown with its error; the exit status is 0 unless
no device can be opened. Info does not open the devices of xdp, as that would attach
a program to the interface. The providers roce and xdp are used only if named.

With --job, run it as the ranks of a job, under any launcher. Every rank connects to
every other, and rank 0 shows for each pair the provider and the devices in use, and
why other providers are not used. Providers are tried in the order in which info
lists them, or in the order of SLUICE_TRANSPORT ("ibv,tcp"; a single one is
mandatory), so nothing is shown of those after the one in use. A pair that cannot be
connected is shown; info does not fail because of it.

--json prints one object. Numbers are JSON numbers, sizes are in bytes; fields that
are unknown or do not apply are left out:

  schema                "` + infoSchema + `"; it changes when a field changes its meaning
  host
    name, os, arch, kernel
    cpus, allowed_cpus  how many this process may use; their numbers
    memlock_bytes       bytes that it may pin (ulimit -l); -1: without limit
    memlock_max_bytes   to which it may raise that limit
    dev_infiniband      whether /dev/infiniband exists
    rdma_devices        RDMA devices that the kernel has
    huge_pages[]        size_bytes, total, free
    shared_huge_pages   when the kernel uses them for Alloc memory: never, advise, …
    transport           SLUICE_TRANSPORT
  providers[]           in order of preference
    name, reason
    available           "yes", "no" or "could not tell"
  devices[]
    provider, name, netdev, firmware, error
    not_opened          why info has not opened it
    rdma_device         the RDMA device of netdev, if this device is not one itself
    char_devices[]      path; error if it cannot be read and written
    numa_node, local_cpus
    hardware_strides    available, reason; of an RDMA device. Sluice does not use them
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

// write prints v as JSON, or with print as text.
func write(w io.Writer, asJSON bool, v any, print func(io.Writer) error) error {
	if !asJSON {
		return print(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
