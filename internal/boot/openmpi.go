package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/sluice-hpc/sluice/internal/reach"
)

// Where PMIx cannot be used (see joinWithoutPMIx), Open MPI's mpirun has put the numbers into the
// environment. On one host rank 0 writes the address of its rendezvous to a file in the session directory, which
// mpirun creates for its user alone and removes at the end; across hosts SLUICE_SERVER must give
// it.

// joinOpenMPI joins a job of Open MPI's mpirun.
func joinOpenMPI(ctx context.Context, v *values) (*Job, error) {
	e := v.place(envOpenMPIRank, envOpenMPISize)
	v.localPlace(&e, envOpenMPILocalRank, envOpenMPILocalSize)
	e.Job = jobNamed("openmpi-" + v.get(envPMIxNamespace))
	e.Server = v.server(false)
	e.Secret, e.Insecure = v.secret(e.Size > 1)
	if v.err != nil {
		return nil, v.err
	}
	if e.Size == 1 || e.Server != "" {
		return e.join(ctx)
	}
	dir := v.get(envPMIxTmpDir)
	if !e.oneHost() || dir == "" {
		why := fmt.Errorf("%d of its %d ranks are on other hosts, and %s is not set", e.Size-e.LocalSize, e.Size, EnvServer)
		if dir == "" {
			why = fmt.Errorf("neither %s nor %s is set", EnvServer, envPMIxTmpDir)
		}
		return nil, &LauncherError{
			Launcher: "Open MPI's mpirun",
			Err:      why,
			Advice:   "start it with -x " + EnvServer + "=host:port, a free port on rank 0's host, and with -x " + EnvSecret,
		}
	}
	// Jobs spawned by one of the ranks use the same directory.
	path := filepath.Join(dir, "sluice-"+jobNamed(e.Job))
	if filepath.Base(path) != "sluice-"+jobNamed(e.Job) {
		return nil, &EnvError{Name: envPMIxNamespace, Value: v.get(envPMIxNamespace), Err: errors.New("it cannot be part of a file name")}
	}
	m := meeting{Environment: e, hosted: true, listen: reach.ListenLoopback}
	m.find = func() ([]string, error) {
		address, err := readAddressFile(path)
		return []string{address}, err
	}
	m.announce = func(ln net.Listener) (func(), error) {
		return func() { os.Remove(path) }, writeAddressFile(path, ln.Addr().String())
	}
	return m.join(ctx)
}

// writeAddressFile creates a file atomically.
func writeAddressFile(path, address string) error {
	if err := checkDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".sluice-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(address)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func readAddressFile(path string) (string, error) {
	if err := checkDirectory(filepath.Dir(path)); err != nil {
		return "", err
	}
	f, err := openSecretFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("rank 0 has not announced its address yet")
		}
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: not a regular file", path)
	}
	if err := checkPrivate(info); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	const most = 300
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return "", err
	}
	address := string(bytes.TrimSpace(b))
	if err := checkAddress(address); err != nil || len(b) > most {
		return "", fmt.Errorf("%s: %.40q is not an address", path, address)
	}
	return address, nil
}

// checkDirectory returns nil if no other user can create a file there.
func checkDirectory(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s: not a directory", dir)
	}
	if err := checkOwnDirectory(info); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}
