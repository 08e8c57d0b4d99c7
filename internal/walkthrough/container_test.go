package walkthrough

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/netns"
)

// container is what a container runtime is asked for. It has PID, mount, UTS and IPC namespaces of its own.
type container struct {
	Name     string // of the host inside
	Root     string // the files of the image
	Args     []string
	Env      []string
	User     int
	ReadOnly bool
	Bare     bool              // neither capabilities nor a way to get any
	Files    map[string]string // below /etc
	Volumes  map[string]string // options of a tmpfs, by where it is mounted
	Cgroup   cgroup
}

// running is a container that has been started.
type running struct {
	cmd *exec.Cmd
	end chan struct{} // closed when it has ended, and its state is known
	g   cgroup
}

// start starts a container in a network namespace, or in the one that this process has.
func (c container) start(network netns.Namespace, memory, milli int64, out, errs io.Writer) (*running, error) {
	g, err := newCgroup(fmt.Sprintf("sluice-%s-%d", c.Name, os.Getpid()), memory, milli)
	if err != nil {
		return nil, err
	}
	c.Cgroup = g
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVariable + "=container"}
	cmd.Stdin = strings.NewReader(string(spec))
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The death signal is that of the thread that starts: it must last.
	started := make(chan error)
	r := &running{cmd, make(chan struct{}), g}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		begin := cmd.Start
		if network > 0 {
			begin = func() error { return network.In(cmd.Start) }
		}
		err := begin()
		started <- err
		if err != nil {
			return
		}
		cmd.Wait()
		close(r.end)
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return r, nil
}

// status waits for the end: as a shell has it, 128 and the number of the signal that has killed it.
func (r *running) status() int {
	<-r.end
	if s := r.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return 128 + int(s.Signal())
	}
	return r.cmd.ProcessState.ExitCode()
}

// remove ends the container, and leaves nothing of it.
func (r *running) remove() error {
	r.cmd.Process.Kill()
	<-r.end
	return r.g.remove()
}

// contain makes this process, the first of its namespaces, the program of the container that is described
// on standard input, as a runtime does (OCI runtime specification, config-linux).
func contain() error {
	var c container
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return err
	}
	if err := c.Cgroup.enter(); err != nil {
		return err
	}
	root, err := c.mount()
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return err
	}
	if err := errors.Join(unix.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/")); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup2(null, 0); err != nil {
		return err
	}
	// Capabilities are a thread's, and the program has those of the thread that starts it.
	runtime.LockOSThread()
	if c.Bare {
		for capability := 0; ; capability++ {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil {
				break // it was the last
			}
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(c.User, c.User, c.User), syscall.Setresuid(c.User, c.User, c.User)); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", c.Args[0], syscall.Exec(c.Args[0], c.Args, c.Env))
}

// mount makes the files of the container, and returns where they are: a root in memory, into which those of
// the image are bound, because few kernels let an overlay lie upon an overlay.
func (c container) mount() (root string, err error) {
	root = "/proc/self/root/tmp" // this namespace's own /tmp from now on
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	mount := func(source, target, kind string, flags uintptr, options string) {
		if err := unix.Mount(source, target, kind, flags, options); err != nil {
			do(&os.PathError{Op: "mount " + kind, Path: target, Err: err})
		}
	}
	image, err := unix.Open(c.Root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	from := fmt.Sprintf("/proc/self/fd/%d", image)
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	mount("root", root, "tmpfs", 0, "mode=755")
	at := func(name string) string { return filepath.Join(root, name) }
	dir := func(name string) string {
		do(os.MkdirAll(at(name), 0o755))
		return at(name)
	}
	bind := func(source, name string, flags uintptr) {
		info, err := os.Stat(source)
		if err != nil {
			do(err)
			return
		}
		if info.IsDir() {
			dir(name)
		} else {
			dir(filepath.Dir(name))
			do(os.WriteFile(at(name), nil, 0o644))
		}
		mount(source, at(name), "", unix.MS_BIND|unix.MS_REC, "")
		if flags != 0 {
			mount("", at(name), "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
		}
	}
	entries, err := os.ReadDir(from)
	do(err)
	for _, e := range entries {
		bind(filepath.Join(from, e.Name()), e.Name(), unix.MS_RDONLY)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		bind("/dev/"+name, "dev/"+name, 0)
	}
	mount("shm", dir("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=64m") // what a runtime gives
	mount("proc", dir("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	mount("sysfs", dir("sys"), "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "")
	if c.Cgroup.Memory == c.Cgroup.CPU {
		mount(c.Cgroup.Memory, at("sys/fs/cgroup"), "", unix.MS_BIND, "")
	} else {
		mount("cgroup", at("sys/fs/cgroup"), "tmpfs", 0, "mode=755")
		bind(c.Cgroup.Memory, "sys/fs/cgroup/memory", unix.MS_RDONLY)
		bind(c.Cgroup.CPU, "sys/fs/cgroup/cpu", unix.MS_RDONLY)
	}
	for name, text := range c.Files {
		dir("etc")
		do(os.WriteFile(at("etc/"+name), []byte(text), 0o644))
	}
	for where, options := range c.Volumes {
		mount("volume", dir(where), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	if c.ReadOnly {
		mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_BIND, "")
	}
	do(unix.Close(image))
	return root, errors.Join(errs...)
}

// hostsFile is /etc/hosts, as kubelet and container runtimes write it.
func hostsFile(ip net.IP, names ...string) string {
	return fmt.Sprintf("127.0.0.1\tlocalhost\n::1\tlocalhost\n%s\t%s\n", ip, strings.Join(names, "\t"))
}
