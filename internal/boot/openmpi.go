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
)

// Open MPI's mpirun speaks PMIx, which is not spoken here. The numbers stand
// in the environment. On one host rank 0 writes where its rendezvous is into a
// file in the session directory, which mpirun makes for its user alone and
// removes in the end; between hosts SLUICE_SERVER has to say it.

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
			Advice:   "start it with -x " + EnvServer + "=host:port, a free port of the host of rank 0, and with -x " + EnvSecret,
		}
	}
	// Jobs that one of them spawns are in the same directory.
	path := filepath.Join(dir, "sluice-"+jobNamed(e.Job))
	if filepath.Base(path) != "sluice-"+jobNamed(e.Job) {
		return nil, &EnvError{Name: envPMIxNamespace, Value: v.get(envPMIxNamespace), Err: errors.New("not part of the name of a file")}
	}
	m := meeting{Environment: e, hosted: true, listen: listenLoopback}
	m.find = func() ([]string, error) {
		address, err := readAddressFile(path)
		return []string{address}, err
	}
	m.announce = func(ln net.Listener) (func(), error) {
		return func() { os.Remove(path) }, writeAddressFile(path, ln.Addr().String())
	}
	return m.join(ctx)
}

// writeAddressFile makes a file that is there as a whole or not at all.
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
			err = errors.New("rank 0 has not yet told where it is")
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
		return "", fmt.Errorf("%s: %.40q is no address", path, address)
	}
	return address, nil
}

// checkDirectory returns nil if nobody else can put a file there.
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

// refusePMIx names a launcher whose language is not spoken here.
func refusePMIx(context.Context, *values) (*Job, error) {
	return nil, &LauncherError{
		Launcher: "a launcher that speaks PMIx alone (" + envPMIxRank + " is set)",
		Err:      errors.New("PMIx is not spoken here"),
		Advice:   usable,
	}
}
