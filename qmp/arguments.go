package qmp

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// arguments holds our command-line options.
type arguments struct {
	geom     []int // -qmp-geom
	allocMap []int // -qmp-alloc-map
	logicMap []int // -qmp-logic-map
	job      []int // -qmp-job
}

// parseArguments reads the options that begin with -qmp- and returns the other arguments. An option
// takes all the numbers that follow it, so an argument of the program that begins with a digit must
// not follow directly. -qmp-geom also takes the word native, which has the same effect as omitting
// the option: a switch has no grid of its own.
func parseArguments(args *[]string) (a arguments, rest []string, err error) {
	if args == nil {
		return a, nil, nil
	}
	list := *args
	for i := 0; i < len(list); {
		name := list[i]
		into := map[string]*[]int{"-qmp-geom": &a.geom, "-qmp-alloc-map": &a.allocMap, "-qmp-logic-map": &a.logicMap, "-qmp-job": &a.job}[name]
		i++
		switch {
		case i == 1: // the program
			rest = append(rest, name)
			continue
		case name == "--": // the rest belongs to the program
			return a, append(rest, list[i-1:]...), nil
		case into == nil && strings.HasPrefix(name, "-qmp-"):
			return a, nil, fmt.Errorf("unknown option %s: the options are -qmp-geom, -qmp-alloc-map, -qmp-logic-map and -qmp-job", name)
		case into == nil:
			rest = append(rest, name)
			continue
		case *into != nil:
			return a, nil, fmt.Errorf("option %s is given twice", name)
		}
		*into = []int{}
		if name == "-qmp-geom" && i < len(list) && list[i] == "native" {
			i++
			continue
		}
		for ; i < len(list) && list[i] != "" && list[i][0] >= '0' && list[i][0] <= '9'; i++ {
			n, err := strconv.Atoi(list[i])
			if err != nil {
				return a, nil, fmt.Errorf("option %s: %q is not a number", name, list[i])
			}
			*into = append(*into, n)
		}
		if len(*into) == 0 {
			return a, nil, fmt.Errorf("option %s needs at least one number", name)
		}
	}
	return a, rest, nil
}

// allocated returns the grid that the options make of n nodes; nil: a switch.
func (a *arguments) allocated(n int) (*grid, error) {
	if len(a.geom) == 0 {
		if len(a.allocMap) > 0 {
			return nil, &Error{Op: "-qmp-alloc-map", Status: StatusInvalidTopology, Err: errors.New("it needs -qmp-geom")}
		}
		return nil, nil
	}
	g, err := newGrid(n, a.geom, a.allocMap)
	if err != nil {
		return nil, &Error{Op: "-qmp-geom", Status: StatusInvalidTopology, Err: err}
	}
	return g, nil
}

// part is the job that a node is in.
type part struct {
	number, count int
	grid          *grid // of the job; nil: a switch
}

// divide finds the job of a node. With a grid the option gives the number of jobs along each axis;
// without a grid the jobs are consecutive nodes.
func (a *arguments) divide(whole *grid, n, node int) (p part, err error) {
	fail := func(format string, args ...any) (part, error) {
		return part{}, &Error{Op: "-qmp-job", Status: StatusInvalidTopology, Err: fmt.Errorf(format, args...)}
	}
	dims, at := []int{n}, []int{node}
	if whole != nil {
		dims, at = whole.Dims, whole.Coordinates(node)
	}
	if len(a.job) != len(dims) {
		return fail("%v jobs in a machine of %v", a.job, dims)
	}
	size := make([]int, len(dims))
	p.count = 1
	for i, jobs := range a.job {
		if jobs < 1 || dims[i]%jobs != 0 {
			return fail("%v jobs in a machine of %v", a.job, dims)
		}
		size[i] = dims[i] / jobs
		p.number += at[i] / size[i] * p.count
		p.count *= jobs
	}
	if whole != nil {
		nodes := 1
		for _, d := range size {
			nodes *= d
		}
		if p.grid, err = newGrid(nodes, size, slices.Clone(a.allocMap)); err != nil {
			return fail("%w", err)
		}
	}
	return p, nil
}
