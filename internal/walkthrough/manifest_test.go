package walkthrough

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifest is what a file of manifests has: each object at most once.
type manifest struct {
	service core.Service
	job     batch.Job
}

// readManifest decodes a file strictly: an unknown field, and one that is there twice, is an error.
func readManifest(file string) (m manifest, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	for _, document := range bytes.Split(b, []byte("\n---\n")) {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return m, err
		}
		var into any
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 Service":
			into = &m.service
		case "batch/v1 Job":
			into = &m.job
		default:
			return m, fmt.Errorf("%s: %q is no object that this knows", file, kind)
		}
		// As the API server does with fieldValidation=Strict; yaml.UnmarshalStrict ignores the case of names.
		text, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return m, fmt.Errorf("%s: %w", file, err)
		}
		strict, err := json.UnmarshalStrict(text, into)
		if err := errors.Join(append(strict, err)...); err != nil {
			return m, fmt.Errorf("%s: %w", file, err)
		}
	}
	return m, nil
}

// What the controllers of Kubernetes give a pod of an indexed Job (docs: concepts/workloads/controllers/job).
const (
	namespace       = "default"
	clusterDomain   = "cluster.local"
	indexAnnotation = "batch.kubernetes.io/job-completion-index"
	indexVariable   = "JOB_COMPLETION_INDEX"
	jobLabel        = "batch.kubernetes.io/job-name"
)

// pod is one of the Job's, as kubelet sees it.
type pod struct {
	name          string // of the host inside
	fqdn          string
	spec          core.PodSpec
	memory, milli int64 // limits: bytes, thousandths of a CPU
	env           []string
	args          []string // nil: those of the image
}

// pods are those of the Job, with the secrets of the namespace.
func (m manifest) pods(secrets map[string]core.Secret) ([]pod, error) {
	spec := m.job.Spec.Template.Spec
	if len(spec.Containers) != 1 {
		return nil, fmt.Errorf("%d containers, want 1", len(spec.Containers))
	}
	c := spec.Containers[0]
	var list []pod
	for index := range int(*m.job.Spec.Completions) {
		p := pod{name: fmt.Sprintf("%s-%d", m.job.Name, index), spec: spec}
		p.fqdn = strings.Join([]string{p.name, spec.Subdomain, namespace, "svc", clusterDomain}, ".")
		p.memory, p.milli = c.Resources.Limits.Memory().Value(), c.Resources.Limits.Cpu().MilliValue()
		fields := map[string]string{
			"metadata.annotations['" + indexAnnotation + "']": strconv.Itoa(index),
			"metadata.name": p.name,
		}
		env := append([]core.EnvVar{{Name: indexVariable, ValueFrom: &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{
			FieldPath: "metadata.annotations['" + indexAnnotation + "']",
		}}}}, c.Env...)
		known := map[string]string{"HOSTNAME": p.name}
		for _, e := range env {
			value, err := valueOf(e, known, fields, secrets, c.Resources.Limits)
			if err != nil {
				return nil, fmt.Errorf("variable %s: %w", e.Name, err)
			}
			known[e.Name] = value
		}
		for name, value := range known {
			p.env = append(p.env, name+"="+value)
		}
		for _, a := range append(append([]string{}, c.Command...), c.Args...) {
			p.args = append(p.args, expand(a, known))
		}
		list = append(list, p)
	}
	return list, nil
}

// valueOf is the value of a variable; those before it may stand in it.
func valueOf(e core.EnvVar, known, fields map[string]string, secrets map[string]core.Secret, limits core.ResourceList) (string, error) {
	from := e.ValueFrom
	switch {
	case from == nil:
		return expand(e.Value, known), nil
	case from.FieldRef != nil:
		value, ok := fields[from.FieldRef.FieldPath]
		if !ok {
			return "", fmt.Errorf("no field %s", from.FieldRef.FieldPath)
		}
		return value, nil
	case from.SecretKeyRef != nil:
		value, ok := secrets[from.SecretKeyRef.Name].StringData[from.SecretKeyRef.Key]
		if !ok {
			return "", fmt.Errorf("no key %s of secret %q", from.SecretKeyRef.Key, from.SecretKeyRef.Name)
		}
		return value, nil
	case from.ResourceFieldRef != nil:
		quantity, ok := limits[core.ResourceName(strings.TrimPrefix(from.ResourceFieldRef.Resource, "limits."))]
		divisor := from.ResourceFieldRef.Divisor
		if divisor.IsZero() {
			divisor = resource.MustParse("1")
		}
		if !ok {
			return "", fmt.Errorf("no %s", from.ResourceFieldRef.Resource)
		}
		return strconv.FormatInt((quantity.Value()+divisor.Value()-1)/divisor.Value(), 10), nil
	}
	return "", fmt.Errorf("from what this does not know")
}

var reference = regexp.MustCompile(`\$\$|\$\(([A-Za-z_][\w.-]*)\)`)

// expand replaces $(NAME) where the variable is known, and $$ by $.
func expand(text string, known map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(r string) string {
		if r == "$$" {
			return "$"
		}
		if value, ok := known[r[2:len(r)-1]]; ok {
			return value
		}
		return r
	})
}

// container is the one of the pod.
func (p pod) container(i image) (container, error) {
	c, err := i.container(p.args)
	if err != nil {
		return c, err
	}
	spec := p.spec.Containers[0]
	c.Name, c.Env = p.name, append(c.Env, p.env...)
	if s := p.spec.SecurityContext; s != nil && s.RunAsUser != nil {
		c.User = int(*s.RunAsUser)
	}
	if s := spec.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			c.User = int(*s.RunAsUser)
		}
		c.ReadOnly = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
		c.Bare = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation && s.Capabilities != nil &&
			len(s.Capabilities.Drop) == 1 && s.Capabilities.Drop[0] == "ALL" && len(s.Capabilities.Add) == 0
	}
	c.Volumes = map[string]string{}
	for _, mount := range spec.VolumeMounts {
		for _, v := range p.spec.Volumes {
			if v.Name != mount.Name {
				continue
			}
			if v.EmptyDir == nil || v.EmptyDir.Medium != core.StorageMediumMemory {
				return c, fmt.Errorf("volume %s is of a kind that this does not know", v.Name)
			}
			options := "mode=1777"
			if v.EmptyDir.SizeLimit != nil {
				options += fmt.Sprintf(",size=%d", v.EmptyDir.SizeLimit.Value())
			}
			c.Volumes[mount.MountPath] = options
		}
	}
	if len(c.Volumes) != len(spec.VolumeMounts) {
		return c, fmt.Errorf("a volume of %v is not there", spec.VolumeMounts)
	}
	return c, nil
}
