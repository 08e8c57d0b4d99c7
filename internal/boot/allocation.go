package boot

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Variables of batch systems that tell a shell, which is no rank, what it was given.
const (
	envSlurmAllNodes = "SLURM_JOB_NODELIST"
	envSlurmAllTasks = "SLURM_TASKS_PER_NODE"
	envPBSNodes      = "PBS_NODEFILE"
)

// Node is a node of an allocation.
type Node struct {
	Name  string
	Slots int  // how many ranks it takes
	Here  bool // it runs this process
}

// Allocation returns the nodes that Slurm, or PBS, has given to the shell in which this process runs: none
// if there is no such shell, or if this process is a rank, which is given no nodes. Slurm says that srun
// reaches them.
//
// Errors: [*EnvError].
func Allocation() (nodes []Node, slurm bool, err error) { return allocationFrom(os.LookupEnv) }

func allocationFrom(lookup func(string) (string, bool)) (nodes []Node, slurm bool, err error) {
	v := &values{lookup: lookup}
	if v.set(EnvRank) || v.set(EnvIMPIServer) || slices.ContainsFunc(launchers, func(l launcher) bool { return l.present(v) }) {
		return nil, false, nil
	}
	switch {
	case v.set(envSlurmJob) && v.set(envSlurmAllNodes):
		nodes, err = slurmNodes(v)
		return nodes, true, err
	case v.set(envPBSNodes):
		path := v.get(envPBSNodes)
		if nodes, err = pbsNodes(path); err != nil {
			err = &EnvError{Name: envPBSNodes, Value: path, Err: err}
		}
	}
	return nodes, false, err
}

func slurmNodes(v *values) (nodes []Node, err error) {
	names, err := parseHostlist(v.get(envSlurmAllNodes))
	if err != nil {
		return nil, &EnvError{Name: envSlurmAllNodes, Value: shorten(v.get(envSlurmAllNodes), 200), Err: err}
	}
	for i, name := range names {
		n := Node{Name: name, Slots: 1, Here: name == v.get(envSlurmNode)}
		if tasks := v.get(envSlurmAllTasks); tasks != "" {
			if n.Slots, err = tasksOfNode(tasks, i); err != nil {
				return nil, &EnvError{Name: envSlurmAllTasks, Value: shorten(tasks, 200), Err: err}
			}
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// pbsNodes reads the file of a PBS job, which has a line with the name of its node for each slot.
func pbsNodes(path string) (nodes []Node, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	own, _ := os.Hostname()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name := strings.TrimSpace(lines.Text())
		if name == "" {
			continue
		}
		if len(name) > maxHost || strings.ContainsFunc(name, func(r rune) bool { return !hostRune(r) }) {
			return nil, fmt.Errorf("%.80q is not the name of a node", name)
		}
		if i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name }); i >= 0 {
			nodes[i].Slots++
			continue
		}
		if len(nodes) == maxHosts {
			return nil, errTooManyHosts
		}
		nodes = append(nodes, Node{Name: name, Slots: 1, Here: name == own})
	}
	return nodes, lines.Err()
}
