//go:build unix

package ranks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"
)

// Children are programs that this process starts, and that go on until End. They need program sleep.
type Children struct{ list []*exec.Cmd }

// Start starts one.
func (c *Children) Start() error {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a program: %w", err)
	}
	c.list = append(c.list, cmd)
	return nil
}

// Len returns how many have been started.
func (c *Children) Len() int { return len(c.list) }

// Alike returns nil if all run, and have inherited no more than the first: an error says what another has. It waits
// for those that are about to begin, whose loader has files open. Of systems without /proc it knows nothing.
func (c *Children) Alike(ctx context.Context) error {
	for _, cmd := range c.list {
		for {
			first, err := descriptors(c.list[0].Process.Pid)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			own, other := descriptors(cmd.Process.Pid)
			if err = errors.Join(err, other); err != nil {
				return err
			}
			if own == first && own != "" {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("a program that was started has %q, the first one has %q; one that has ended has none", own, first)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// descriptors says which descriptors a process has: none if it has ended.
func descriptors(pid int) (list string, err error) {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		at, err := os.Readlink(dir + e.Name())
		if err == nil { // else it has just been closed
			list += fmt.Sprintf("%s: %s; ", e.Name(), at)
		}
	}
	return list, err
}

// End ends them.
func (c *Children) End() {
	for _, cmd := range c.list {
		cmd.Process.Kill()
		cmd.Wait()
	}
}
