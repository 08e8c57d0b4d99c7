package boot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/pmix"
	"github.com/sluice-hpc/sluice/internal/variable"
)

// Variables of other launchers that tell a process its place in the job.
const (
	envPMIFD       = "PMI_FD"
	envPMIPort     = "PMI_PORT"
	envPMIID       = "PMI_ID"
	envPMIRank     = "PMI_RANK"
	envPMISize     = "PMI_SIZE"
	envHydraLocal  = "MPI_LOCALRANKID"
	envHydraLocals = "MPI_LOCALNRANKS"

	envOpenMPIRank      = "OMPI_COMM_WORLD_RANK"
	envOpenMPISize      = "OMPI_COMM_WORLD_SIZE"
	envOpenMPILocalRank = "OMPI_COMM_WORLD_LOCAL_RANK"
	envOpenMPILocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE"
	envPMIxRank         = "PMIX_RANK"
	envPMIxNamespace    = "PMIX_NAMESPACE"
	envPMIxTmpDir       = "PMIX_SERVER_TMPDIR"

	envSlurmJob          = "SLURM_JOB_ID"
	envSlurmStep         = "SLURM_STEP_ID"
	envSlurmRank         = "SLURM_PROCID"
	envSlurmSize         = "SLURM_STEP_NUM_TASKS"
	envSlurmLocalRank    = "SLURM_LOCALID"
	envSlurmTasksPerNode = "SLURM_STEP_TASKS_PER_NODE"
	envSlurmNodeNumber   = "SLURM_NODEID"
	envSlurmNodes        = "SLURM_STEP_NODELIST"
	envSlurmNode         = "SLURMD_NODENAME"
	envSlurmPorts        = "SLURM_STEP_RESV_PORTS"

	envCompletionIndex = "JOB_COMPLETION_INDEX"

	envIMPIKey = "IMPI_AUTH_KEY"
)

// ForeignVariables lists the variables of other launchers that Join reads, in
// a fresh slice.
func ForeignVariables() []variable.Variable {
	return []variable.Variable{
		{Name: envPMIFD, Meaning: "descriptor of the connection to a PMI-1 launcher"},
		{Name: envPMIPort, Meaning: "host:port of a PMI-1 launcher"},
		{Name: envPMIID, Meaning: "number of this process, with PMI_PORT"},
		{Name: envPMIRank, Meaning: "rank, with PMI_FD"},
		{Name: envPMISize, Meaning: "size of the job, with PMI_FD"},
		{Name: envHydraLocal, Meaning: "rank within this host, from Hydra"},
		{Name: envHydraLocals, Meaning: "number of ranks on this host, from Hydra"},
		{Name: envOpenMPIRank, Meaning: "rank, from Open MPI's mpirun"},
		{Name: envOpenMPISize, Meaning: "size of the job, from Open MPI's mpirun"},
		{Name: envOpenMPILocalRank, Meaning: "rank within this host, from Open MPI's mpirun"},
		{Name: envOpenMPILocalSize, Meaning: "number of ranks on this host, from Open MPI's mpirun"},
		{Name: envPMIxRank, Meaning: "set by a launcher that speaks PMIx"},
		{Name: envPMIxNamespace, Meaning: "name of the job under PMIx"},
		{Name: envPMIxTmpDir, Meaning: "session directory of Open MPI's mpirun"},
		{Name: envSlurmJob, Meaning: "number of the Slurm job"},
		{Name: envSlurmStep, Meaning: "number of the srun step"},
		{Name: envSlurmRank, Meaning: "rank, from srun"},
		{Name: envSlurmSize, Meaning: "number of ranks in the srun step"},
		{Name: envSlurmLocalRank, Meaning: "rank within this node, from srun"},
		{Name: envSlurmTasksPerNode, Meaning: "numbers of ranks on the nodes of the srun step"},
		{Name: envSlurmNodeNumber, Meaning: "number of this node in the srun step"},
		{Name: envSlurmNodes, Meaning: "nodes of the srun step; rank 0 is on the first"},
		{Name: envSlurmNode, Meaning: "name of this node, from Slurm"},
		{Name: envSlurmPorts, Meaning: "ports that Slurm has reserved for the step"},
		{Name: envCompletionIndex, Meaning: "rank, in an indexed Job of Kubernetes"},
		{Name: envIMPIKey, Meaning: "decimal key that admits this process to an IMPI server as a client", For: variable.Job, Default: "none"},
	}
}

// WithoutLauncher returns environment, a list of NAME=value, without the variables with which any
// launcher has described this process. A program started with the rest, and with the variables of
// [Environment.Environ], is a rank of the new job only. The index of a pod stays: it cannot be
// mistaken for a launcher inside the pod.
func WithoutLauncher(environment []string) []string {
	drop := map[string]bool{
		envHydraLocal:     true,
		envHydraLocals:    true,
		envSlurmStep:      true,
		"SLURM_STEPID":    true, // its older name
		envSlurmRank:      true,
		envSlurmLocalRank: true,
	}
	for _, v := range Variables() {
		drop[v.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(environment), func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		for _, prefix := range []string{"PMI_", "PMIX_", "OMPI_COMM_WORLD_"} {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return drop[name]
	})
}

// launcher is one that may have started this process.
type launcher struct {
	present func(*values) bool
	join    func(context.Context, *values) (*Job, error)
}

// launchers is in the order in which Join tries them. Open MPI and Hydra start their daemons
// through srun if they can, so their ranks inherit its variables.
var launchers = []launcher{
	{pmiByFD, joinByPMIFD},
	{func(v *values) bool { return v.set(envPMIPort) }, joinByPMIPort},
	{underPMIx, joinPMIx},
	{inSlurmStep, joinSlurm},
	{func(v *values) bool { return v.set(envPMIRank) }, refusePMI},
}

// inside returns the lookup for a launcher that was started inside 'sluice run', if there is one:
// of our own variables, only those of the secret and of the library of PMIx, and that all ranks run the
// same program, then apply to its ranks too.
func (v *values) inside() func(string) (string, bool) {
	if !v.set(EnvLauncher) {
		return v.lookup
	}
	return func(name string) (string, bool) {
		switch name {
		case EnvSecret, EnvSecretFile, EnvInsecure, EnvSame, pmix.Env:
		default:
			if strings.HasPrefix(name, "SLUICE_") {
				return "", false
			}
		}
		return v.lookup(name)
	}
}

// jobNamed returns an id for a job that its launcher calls name, the same on all ranks: as much of the name
// as fits, and a number.
func jobNamed(name string) string {
	if len(name) <= maxJobID {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	number := fmt.Sprintf("~%020d", binary.BigEndian.Uint64(sum[:]))
	return shorten(name, maxJobID-len(number)) + number
}

// place reads this process's rank and the size of the job.
func (v *values) place(rank, size string) (e Environment) {
	e.Size = v.integer(size, 1, MaxSize)
	e.Rank = v.integer(rank, 0, max(e.Size-1, 0))
	e.LocalRank = -1
	e.Same = v.flag(EnvSame)
	return e
}

// localPlace reads this process's place among the ranks of this host, if both variables are set.
func (v *values) localPlace(e *Environment, rank, size string) {
	if v.set(rank) && v.set(size) {
		e.LocalSize = v.integer(size, 1, max(e.Size, 1))
		e.LocalRank = v.integer(rank, 0, max(e.LocalSize-1, 0))
	}
}

// oneHost says that all ranks are known to be on this host.
func (e *Environment) oneHost() bool { return e.LocalSize == e.Size }

const usable = "use srun --mpi=pmi2, mpiexec.hydra, Open MPI's mpirun or sluice run, or set " + EnvRank + ", " + EnvSize + " and " + EnvServer

// slurmPMIx says that it is Slurm itself that speaks PMIx, in this step: it sets the same variables with
// PMIx as without.
func (v *values) slurmPMIx() bool {
	return inSlurmStep(v) && v.get(envPMIxNamespace) == "slurm.pmix."+v.slurmStep()
}
