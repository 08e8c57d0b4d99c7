package boot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// The variables through which other launchers tell a process who it is.
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
func ForeignVariables() []Variable {
	return []Variable{
		{envPMIFD, "descriptor of the connection to a PMI-1 launcher"},
		{envPMIPort, "host:port of a PMI-1 launcher"},
		{envPMIID, "number of this process at PMI_PORT"},
		{envPMIRank, "rank, with PMI_FD"},
		{envPMISize, "size of the job, with PMI_FD"},
		{envHydraLocal, "rank among those of this host, of Hydra"},
		{envHydraLocals, "number of ranks of this host, of Hydra"},
		{envOpenMPIRank, "rank, of Open MPI's mpirun"},
		{envOpenMPISize, "size of the job, of Open MPI's mpirun"},
		{envOpenMPILocalRank, "rank among those of this host, of Open MPI's mpirun"},
		{envOpenMPILocalSize, "number of ranks of this host, of Open MPI's mpirun"},
		{envPMIxRank, "set by a launcher that speaks PMIx"},
		{envPMIxNamespace, "name of the job under PMIx"},
		{envPMIxTmpDir, "session directory of Open MPI's mpirun"},
		{envSlurmJob, "number of the job of Slurm"},
		{envSlurmStep, "number of the step of srun"},
		{envSlurmRank, "rank, of srun"},
		{envSlurmSize, "number of ranks in the step of srun"},
		{envSlurmLocalRank, "rank among those of this node, of srun"},
		{envSlurmTasksPerNode, "numbers of ranks on the nodes of the step of srun"},
		{envSlurmNodeNumber, "number of this node in the step of srun"},
		{envSlurmNodes, "nodes of the step of srun; rank 0 is on the first"},
		{envSlurmNode, "name of this node, of Slurm"},
		{envSlurmPorts, "ports that Slurm has reserved for the step"},
		{envCompletionIndex, "rank, in an indexed Job of Kubernetes"},
		{envIMPIKey, "decimal number that proves to an IMPI server that this process may be its client"},
	}
}

// WithoutLauncher returns environment, a list of NAME=value, without what any
// launcher has said about this process. A program that is started with the
// rest, and with what [Environment.Environ] returns, is a rank of the new job
// and of no other. The index of a pod stays: no launcher inside of it can be
// mistaken for it.
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

// launchers are asked in this order. Open MPI and Hydra start their daemons
// through srun where they can, whose variables their ranks inherit.
var launchers = []launcher{
	{pmiByFD, joinByPMIFD},
	{func(v *values) bool { return v.set(envPMIPort) }, joinByPMIPort},
	{func(v *values) bool { return v.set(envOpenMPIRank) }, joinOpenMPI},
	{func(v *values) bool { return v.set(envPMIxRank) && !v.slurmPMIx() }, refusePMIx},
	{inSlurmStep, joinSlurm},
	{func(v *values) bool { return v.set(envPMIRank) }, refusePMI},
}

// inside returns the lookup for a launcher that was started inside of 'sluice
// run', if there is one around: of the variables of ours then only the secret
// concerns its ranks too.
func (v *values) inside() func(string) (string, bool) {
	if !v.set(EnvLauncher) {
		return v.lookup
	}
	return func(name string) (string, bool) {
		switch name {
		case EnvSecret, EnvSecretFile, EnvInsecure:
		default:
			if strings.HasPrefix(name, "SLUICE_") {
				return "", false
			}
		}
		return v.lookup(name)
	}
}

// jobNamed returns an id for a job that its launcher calls name; the same at
// all ranks.
func jobNamed(name string) string {
	if len(name) <= maxJobID {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// place reads which rank of how many this process is.
func (v *values) place(rank, size string) (e Environment) {
	e.Size = v.integer(size, 1, MaxSize)
	e.Rank = v.integer(rank, 0, max(e.Size-1, 0))
	e.LocalRank = -1
	return e
}

// localPlace reads which of the ranks of this host it is, if both are set.
func (v *values) localPlace(e *Environment, rank, size string) {
	if v.set(rank) && v.set(size) {
		e.LocalSize = v.integer(size, 1, max(e.Size, 1))
		e.LocalRank = v.integer(rank, 0, max(e.LocalSize-1, 0))
	}
}

// oneHost says that all ranks are known to be on this host.
func (e *Environment) oneHost() bool { return e.LocalSize == e.Size }

const usable = "use srun --mpi=pmi2, mpiexec.hydra, Open MPI's mpirun or sluice run, or set " + EnvRank + ", " + EnvSize + " and " + EnvServer

// slurmPMIx says that it is Slurm itself that speaks PMIx: it gives the same
// variables as it does without.
func (v *values) slurmPMIx() bool {
	return inSlurmStep(v) && v.get(envPMIxNamespace) == "slurm.pmix."+v.slurmStep()
}
