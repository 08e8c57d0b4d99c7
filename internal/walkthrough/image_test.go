package walkthrough

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// store is where buildah keeps images: no other is touched, and nothing of it is left.
type store struct{ dir string }

// command is one of buildah. Images come from nothing, so there is no network, and no process runs in one.
func (s store) command(args ...string) *exec.Cmd {
	return exec.Command("buildah", append([]string{"--storage-driver", "vfs", "--root", filepath.Join(s.dir, "store"), "--runroot", filepath.Join(s.dir, "run")}, args...)...)
}

func (s store) run(args ...string) (string, error) {
	cmd := s.command(args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("buildah %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// build builds an image by a folder's Dockerfile.
func (s store) build(name, folder string) error {
	_, err := s.run("bud", "--isolation", "chroot", "-t", name, "-f", filepath.Join(folder, "Dockerfile"), folder)
	return err
}

// registry is where images go that are pushed.
func (s store) registry(name string) string {
	return "dir:" + filepath.Join(s.dir, "registry-"+strings.NewReplacer("/", "-", ":", "-").Replace(name))
}

// image is what a runtime has to know of an image.
type image struct {
	root       string
	Entrypoint []string
	Cmd        []string
	Env        []string
	User       string
}

// open unpacks an image.
func (s store) open(name string) (i image, err error) {
	text, err := s.run("inspect", "--type", "image", name)
	if err != nil {
		return i, err
	}
	var about struct {
		OCIv1 struct {
			Config *image `json:"config"`
		}
	}
	about.OCIv1.Config = &i
	if err := json.Unmarshal([]byte(text), &about); err != nil {
		return i, err
	}
	id, err := s.run("from", name)
	if err != nil {
		return i, err
	}
	i.root, err = s.run("mount", id)
	return i, err
}

// container is what the image makes of a command; none: its own.
func (i image) container(args []string) (c container, err error) {
	c = container{Name: "container", Root: i.root, Args: append(append([]string{}, i.Entrypoint...), args...), Env: append([]string{"PATH=/bin"}, i.Env...)}
	if len(args) == 0 {
		c.Args = append(c.Args, i.Cmd...)
	}
	if i.User != "" {
		_, err = fmt.Sscan(strings.SplitN(i.User, ":", 2)[0], &c.User)
	}
	if len(c.Args) == 0 {
		return c, fmt.Errorf("the image has no command")
	}
	c.Env = append(c.Env, "HOME=/")
	return c, err
}

// compile builds a static program, as the pages say.
func compile(folder, pattern, out string, env ...string) error {
	cmd := exec.Command("go", "build", "-o", out, pattern)
	cmd.Dir = folder
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, text)
	}
	return nil
}

// newStore makes a store that ends with the test.
func newStore(t testing.TB) store {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-store") // buildah wants lower case
	require.NoError(t, err)
	s := store{dir}
	t.Cleanup(func() {
		_, err := s.run("rm", "--all")
		require.NoError(t, err)
		_, err = s.run("rmi", "--all", "--force")
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(dir))
	})
	return s
}
