package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/variable"
)

// newLaunchers is only a help topic.
func newLaunchers() *cobra.Command {
	return &cobra.Command{
		Use:   "launchers",
		Short: "Which launchers can start a program, and which variables it reads",
		Long:  launchersHelp(),
	}
}

func launchersHelp() string {
	var b strings.Builder
	b.WriteString(`To find out which rank of which job it is, a program looks for, in this order:

  an IMPI server         SLUICE_IMPI_SERVER and SLUICE_RANK; see 'sluice server'
  variables set by hand  SLUICE_RANK, SLUICE_SIZE, SLUICE_SERVER
  PMI-1                  mpiexec.hydra (MPICH), srun --mpi=pmi2
  PMIx                   mpirun (Open MPI), prterun, srun --mpi=pmix
  Slurm                  srun without PMI or PMIx; not the shell of sbatch
  sluice run
  Kubernetes             an indexed Job

Without any of these it is a job of one. The innermost of several launchers counts.
SLUICE_SERVER (where the ranks meet) and the secret (which they need unless 'sluice
run', PMI or PMIx gives them one) apply under every launcher. Each rank reads for itself
SLUICE_TRANSPORT, which names the providers to use; see 'sluice info --help'.

Variables of Sluice:

`)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	list := func(variables []variable.Variable) {
		for _, v := range variables {
			fmt.Fprintf(w, "  %s\t%s\n", v.Name, v.Meaning)
		}
		w.Flush()
	}
	list(boot.Variables())
	b.WriteString("\nVariables of launchers:\n\n")
	list(boot.ForeignVariables())
	return strings.TrimSuffix(b.String(), "\n")
}
