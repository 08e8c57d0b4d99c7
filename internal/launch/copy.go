package launch

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sluice-hpc/sluice/internal/launch/wire"
)

// copied is a program that is sent to hosts.
type copied struct {
	path  string
	index int // of its file at the agent; of this program: none
	size  int64
	sum   [sha256.Size]byte
}

// own is the place of this program among those that are sent: those of the ranks follow.
const own = 0

// toCopy looks at the programs that are to be sent. The same one goes once.
func (j *job) toCopy() (list []copied, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("launch: copy: %w", err)
	}
	c, err := look(self)
	if err != nil {
		return nil, fmt.Errorf("launch: copy: %w", err)
	}
	list = append(list, c)
	seen, rank := map[string]copied{}, 0
	for i := range j.programs {
		p := &j.programs[i]
		path := p.Args[0]
		if p.Dir != "" && filepath.Base(path) != path && !filepath.IsAbs(path) {
			path = filepath.Join(p.Dir, path) // which start runs, too
		}
		path, err := exec.LookPath(path)
		c, ok := seen[path]
		if !ok {
			if err == nil {
				c, err = look(path)
			}
			if err != nil {
				return nil, &StartError{Rank: rank, Err: err}
			}
			c.index = len(seen)
			seen[path] = c
		}
		list = append(list, c)
		rank += p.Size
	}
	return list, nil
}

// look reads a program.
func look(path string) (c copied, err error) {
	f, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer f.Close()
	sum := sha256.New()
	c.path = path
	c.size, err = io.Copy(sum, f)
	sum.Sum(c.sum[:0])
	return c, err
}

// send passes on the program in pieces. It has the size that it had, whatever has become of it; the sum
// tells.
func (c *copied) send(put func([]byte) error) error {
	f, err := os.Open(c.path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := io.LimitReader(f, c.size)
	for left := c.size; left > 0; {
		b := make([]byte, min(left, wire.MaxPiece))
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("%s: %w", c.path, err)
		}
		if err := put(b); err != nil {
			return err
		}
		left -= int64(len(b))
	}
	return nil
}

// copies says that programs are sent to the host.
func (a *agent) copies() bool { return a.Hosts.Copy && !a.here }

// sendPrograms sends those of the ranks.
func (a *agent) sendPrograms() error {
	next := 0
	for i := range a.copied[own+1:] {
		c := &a.copied[own+1:][i]
		if c.index < next {
			continue // the same as an earlier one
		}
		next++
		if err := a.out.wait(wire.File{Index: uint32(c.index), Size: uint64(c.size), Sum: c.sum}.Append(nil)); err != nil {
			return err
		}
		if err := c.send(func(b []byte) error { return a.out.wait(wire.Chunk{Data: b}.Append(nil)) }); err != nil {
			return err
		}
	}
	return nil
}

// receiver is a script for a shell that reads this program from its standard input, runs it as an agent, and
// removes it. It is one line, and has no apostrophe.
func (c *copied) receiver() string {
	return fmt.Sprintf(`umask 077; d=$(mktemp -d "${TMPDIR:-/tmp}/sluice.XXXXXXXXXX") || exit 125; `+
		`trap "rm -rf \"$d\"" EXIT; trap "exit 143" HUP INT TERM; `+
		`head -c %d >"$d/sluice" && s=$(sha256sum <"$d/sluice") && [ "${s%%%% *}" = %x ] || { echo "the copy in $d is not complete" >&2; exit 125; }; `+
		`chmod 700 "$d/sluice"; "$d/sluice" %s --folder "$d"`, c.size, c.sum, AgentCommand)
}
