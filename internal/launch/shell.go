package launch

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/reach"
)

// ssh is the Shell that is used if none is given. BatchMode: it must not ask for a password, for it is not
// in the foreground of the terminal; ConnectTimeout: a host that is not there would take minutes.
var ssh = []string{"ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"}

// srun starts one process on a node beside whatever else runs there, with all that the job has of the node.
var srun = []string{"srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--mpi=none", "--cpu-bind=none", "--quiet"}

// AgentCommand is the argument with which this program is an agent: see [Agent].
const AgentCommand = "agent"

// shell is the command that runs commands on hosts.
func (h *Hosts) shell() []string {
	if len(h.Shell) > 0 {
		return h.Shell
	}
	return ssh
}

// shellName is the name of the command that starts the agent.
func (a *agent) shellName() string { return a.cmd.Args[0] }

// command is what starts the agent. The secret of the job is in none of its arguments and variables.
func (a *agent) command() *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	if a.here {
		cmd := exec.Command(self, AgentCommand)
		cmd.Env = a.environment
		return cmd
	}
	words := []string{self, AgentCommand}
	if a.copies() {
		words = []string{"sh", "-c", a.copied[own].receiver()}
	}
	var shell []string
	if a.Hosts.Slurm {
		shell = slices.Concat(srun, []string{"--nodelist=" + a.host}, words)
	} else {
		for i := range words {
			words[i] = quote(words[i])
		}
		shell = slices.Concat(a.Hosts.shell(), []string{a.host, "exec " + strings.Join(words, " ")})
	}
	cmd := exec.Command(shell[0], shell[1:]...)
	cmd.Env = boot.WithoutLauncher(os.Environ())
	return cmd
}

// thisHost says whether a host is this one, as far as its name tells: a name that needs to be looked up is
// for ssh, whose configuration may know it alone.
func thisHost(host string) bool {
	if own, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(own, ".")
		if host == own || host == short || host == "localhost" {
			return true
		}
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if address.IsLoopback() {
		return true
	}
	list, err := reach.Interfaces()
	return err == nil && slices.ContainsFunc(list, func(i reach.Interface) bool { return slices.Contains(i.Addrs, address.Unmap()) })
}
