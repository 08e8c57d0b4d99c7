package walkthrough

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
)

// kubectl is what the page uses of kubectl, for a cluster that is this machine. Its objects are files beside
// the store; a Job runs while something waits for it.
func kubectl() error {
	s := store{os.Getenv(storeVariable)}
	f := flag.NewFlagSet("kubectl", flag.ContinueOnError)
	object := func(name string) string { return filepath.Join(s.dir, strings.ReplaceAll(name, "/", "-")) }
	switch args := os.Args[2:]; os.Args[1] {
	case "create":
		if len(args) < 3 || args[0] != "secret" || args[1] != "generic" {
			return fmt.Errorf("no kubectl create %v here", args)
		}
		literal := f.String("from-literal", "", "")
		if err := f.Parse(args[3:]); err != nil {
			return err
		}
		key, value, _ := strings.Cut(*literal, "=")
		b, err := json.Marshal(core.Secret{StringData: map[string]string{key: value}})
		if err != nil {
			return err
		}
		return os.WriteFile(object("secret/"+args[2]), b, 0o600)
	case "apply", "delete":
		file := f.String("f", "", "")
		if err := f.Parse(args); err != nil {
			return err
		}
		if os.Args[1] == "delete" && f.NArg() == 2 {
			return os.Remove(object(f.Arg(0) + "/" + f.Arg(1)))
		}
		m, err := readManifest(*file)
		if err != nil {
			return err
		}
		if os.Args[1] == "delete" {
			return os.Remove(object("job/" + m.job.Name))
		}
		b, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		return os.WriteFile(object("job/"+m.job.Name), b, 0o600)
	case "wait":
		condition, timeout := f.String("for", "", ""), f.Duration("timeout", time.Second, "")
		if err := f.Parse(args); err != nil {
			return err
		}
		if *condition != "condition=complete" {
			return fmt.Errorf("no condition %s here", *condition)
		}
		m, err := readManifest(object(f.Arg(0)))
		if err != nil {
			return err
		}
		return s.runJob(m, *timeout)
	case "logs":
		prefix, label := f.Bool("prefix", false, ""), f.String("l", "", "")
		if err := f.Parse(args); err != nil {
			return err
		}
		name, found := strings.CutPrefix(*label, jobLabel+"=")
		if !found {
			return fmt.Errorf("no label %s here", *label)
		}
		logs, err := filepath.Glob(object("log/" + name + "-*"))
		for _, file := range logs {
			b, e := os.ReadFile(file)
			err = errors.Join(err, e)
			for line := range strings.Lines(string(b)) {
				if *prefix {
					fmt.Printf("[pod/%s/rank] ", strings.TrimPrefix(filepath.Base(file), "log-"))
				}
				fmt.Print(line)
			}
		}
		return err
	}
	return fmt.Errorf("no kubectl %s here", os.Args[1])
}

// runJob runs the Job of a manifest to its end. Its image comes from what docker push has pushed.
func (s store) runJob(m manifest, timeout time.Duration) error {
	b, err := os.ReadFile(filepath.Join(s.dir, "secret-"+m.job.Name))
	if err != nil {
		return err
	}
	var secret core.Secret
	if err := json.Unmarshal(b, &secret); err != nil {
		return err
	}
	pods, err := m.pods(map[string]core.Secret{m.job.Name: secret})
	if err != nil {
		return err
	}
	id, err := s.run("pull", s.registry(pods[0].spec.Containers[0].Image))
	if err != nil {
		return err
	}
	i, err := s.open(id)
	if err != nil {
		return err
	}
	c, err := newCluster(len(pods), i)
	if err != nil {
		return err
	}
	var runs []*running
	var logs []*os.File
	for place, p := range pods {
		log, e := os.Create(filepath.Join(s.dir, "log-"+p.name))
		if e != nil {
			return errors.Join(e, c.close())
		}
		logs = append(logs, log)
		r, e := c.start(p, place, log)
		if e != nil {
			return errors.Join(e, c.close())
		}
		runs = append(runs, r)
	}
	over := time.After(timeout)
	for n, r := range runs {
		select {
		case <-r.end:
			if status := r.status(); status != 0 {
				err = errors.Join(err, fmt.Errorf("pod %s: status %d", pods[n].name, status))
			}
		case <-over:
			return errors.Join(fmt.Errorf("timed out waiting for pod %s", pods[n].name), c.close())
		}
	}
	for _, log := range logs {
		err = errors.Join(err, log.Close())
	}
	return errors.Join(err, c.close())
}
