package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// claimed begins the names by which launchers of this host claim its cores: a variable for tests alone.
var claimed = "sluice-core-"

// claims are cores that this process has claimed. Each claim is an abstract socket with a name of its own
// (unix(7)): any user's process can hold one, no file stays behind, and the kernel ends it with the
// process. Launchers in different network namespaces do not see each other's.
type claims []int

// claim claims the core of a CPU; false if another launcher has it.
func (c *claims) claim(cpu int) (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	switch err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + claimed + CoreOf(cpu)}); {
	case err == nil:
		*c = append(*c, fd)
		return true, nil
	case errors.Is(err, unix.EADDRINUSE):
		unix.Close(fd)
		return false, nil
	default:
		unix.Close(fd)
		return false, os.NewSyscallError("bind", err)
	}
}

func (c *claims) release() {
	for _, fd := range *c {
		unix.Close(fd)
	}
	*c = nil
}

// bindFree chooses a CPU for each rank, on a core of its own that no other launcher has claimed, and claims
// those. Without them it says why there are none. Where there are several cores for each rank none is bound:
// bound to one CPU, a Go program runs its goroutines one at a time.
func (j *job) bindFree() (why string) {
	if j.Size == 1 {
		return "" // it communicates with no rank that might be far away
	}
	for i := range j.programs {
		for _, name := range []string{"GOMAXPROCS", "OMP_NUM_THREADS"} {
			if value := lookup(j.programs[i].environment, name); value != "" && value != "1" {
				return fmt.Sprintf("not bound to cores: %s=%s asks for more than one of them for each rank", name, value)
			}
		}
	}
	cpus, err := Cores()
	if err != nil {
		return fmt.Sprintf("not bound to cores: %v", err)
	}
	cores := map[string]bool{}
	cpus = slices.DeleteFunc(cpus, func(cpu int) bool {
		core := CoreOf(cpu)
		another := cores[core]
		cores[core] = true
		return another
	})
	if len(cpus) >= 2*j.Size {
		return ""
	}
	others := 0
	for _, cpu := range cpus {
		if len(j.cpus) == j.Size {
			break
		}
		free, err := j.claims.claim(cpu)
		switch {
		case err != nil:
			why = fmt.Sprintf("not bound to cores: they cannot be claimed: %v", err)
		case free:
			j.cpus = append(j.cpus, cpu)
		default:
			others++
		}
	}
	switch {
	case len(j.cpus) == j.Size:
		return ""
	case why != "":
	case j.Size > runtime.NumCPU(): // which is said anyway
	case others > 0:
		why = fmt.Sprintf("not bound to cores: %d ranks, and other jobs of sluice run have %d of %d cores", j.Size, others, len(cpus))
	default:
		why = fmt.Sprintf("not bound to cores: %d ranks, and %d cores", j.Size, len(cpus))
	}
	j.claims.release()
	j.cpus = nil
	return why
}

// claimOwn claims the cores of the CPUs to which ranks are bound, as far as they are free, so that other
// launchers leave them alone.
func (j *job) claimOwn() {
	for i, cpu := range j.cpus {
		if i == j.Size {
			return
		}
		if _, err := j.claims.claim(cpu); err != nil {
			return
		}
	}
}

// lookup returns the value of a variable of an environment, whose last one counts.
func lookup(environment []string, name string) (value string) {
	for _, v := range environment {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			value = rest
		}
	}
	return value
}
