package boot

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// What docs/kubernetes.yaml may contain (Kubernetes API, v1 Service and
// batch/v1 Job); another field is a mistake.
type (
	metadata struct {
		Name string `yaml:"name"`
	}
	service struct {
		APIVersion string   `yaml:"apiVersion"`
		Kind       string   `yaml:"kind"`
		Metadata   metadata `yaml:"metadata"`
		Spec       struct {
			ClusterIP                string            `yaml:"clusterIP"`
			PublishNotReadyAddresses bool              `yaml:"publishNotReadyAddresses"`
			Selector                 map[string]string `yaml:"selector"`
			Ports                    []struct {
				Name string `yaml:"name"`
				Port int    `yaml:"port"`
			} `yaml:"ports"`
		} `yaml:"spec"`
	}
	indexedJob struct {
		APIVersion string   `yaml:"apiVersion"`
		Kind       string   `yaml:"kind"`
		Metadata   metadata `yaml:"metadata"`
		Spec       struct {
			CompletionMode string `yaml:"completionMode"`
			Completions    int    `yaml:"completions"`
			Parallelism    int    `yaml:"parallelism"`
			BackoffLimit   *int   `yaml:"backoffLimit"`
			Template       struct {
				Spec struct {
					Subdomain     string `yaml:"subdomain"`
					RestartPolicy string `yaml:"restartPolicy"`
					Containers    []struct {
						Name    string   `yaml:"name"`
						Image   string   `yaml:"image"`
						Command []string `yaml:"command"`
						Env     []struct {
							Name      string `yaml:"name"`
							Value     string `yaml:"value"`
							ValueFrom struct {
								SecretKeyRef struct {
									Name string `yaml:"name"`
									Key  string `yaml:"key"`
								} `yaml:"secretKeyRef"`
							} `yaml:"valueFrom"`
						} `yaml:"env"`
					} `yaml:"containers"`
				} `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
)

// The manifest in the docs makes the ranks of one job of its pods.
func TestKubernetesManifest(t *testing.T) {
	f, err := os.Open("../../docs/kubernetes.yaml")
	require.NoError(t, err)
	defer f.Close()
	decoder := yaml.NewDecoder(f)
	decoder.KnownFields(true)
	var s service
	var j indexedJob
	require.NoError(t, decoder.Decode(&s))
	require.NoError(t, decoder.Decode(&j))
	require.ErrorIs(t, decoder.Decode(new(any)), io.EOF)

	require.Equal(t, []string{"v1", "Service", "None"}, []string{s.APIVersion, s.Kind, s.Spec.ClusterIP})
	require.True(t, s.Spec.PublishNotReadyAddresses)
	require.Equal(t, map[string]string{"batch.kubernetes.io/job-name": j.Metadata.Name}, s.Spec.Selector)
	require.Len(t, s.Spec.Ports, 1)

	pod := j.Spec.Template.Spec
	require.Equal(t, []string{"batch/v1", "Job", "Indexed", "Never"}, []string{j.APIVersion, j.Kind, j.Spec.CompletionMode, pod.RestartPolicy})
	require.Equal(t, s.Metadata.Name, pod.Subdomain)
	require.Equal(t, j.Spec.Completions, j.Spec.Parallelism)
	require.NotNil(t, j.Spec.BackoffLimit)
	require.Zero(t, *j.Spec.BackoffLimit)
	require.Len(t, pod.Containers, 1)

	listed := make(map[string]bool)
	for _, v := range Variables() {
		listed[v.Name] = true
	}
	var env []string
	for _, e := range pod.Containers[0].Env {
		require.True(t, listed[e.Name], e.Name)
		if e.Value == "" {
			require.NotEmpty(t, e.ValueFrom.SecretKeyRef.Name)
			require.NotEmpty(t, e.ValueFrom.SecretKeyRef.Key)
			e.Value = hexSecret
		}
		env = append(env, e.Name+"="+e.Value)
	}
	for index := range j.Spec.Completions {
		got, found, err := parseEnvironment(variables(append(env[:len(env):len(env)], fmt.Sprint("JOB_COMPLETION_INDEX=", index))...))
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, []int{index, j.Spec.Completions}, []int{got.Rank, got.Size})
		require.False(t, got.Launched)
		require.NotNil(t, got.Secret)
		want := net.JoinHostPort(j.Metadata.Name+"-0."+s.Metadata.Name, strconv.Itoa(s.Spec.Ports[0].Port))
		require.Equal(t, want, got.Server)
	}
}

func TestCompletionIndex(t *testing.T) {
	ctx := ranks.Within(t)
	const size = 3
	env := []string{"SLUICE_SIZE=3", "SLUICE_SERVER=" + freeAddress(t), "SLUICE_SECRET=" + hexSecret}
	jobs, errs := make([]*Job, size), make([]error, size)
	each(size, func(rank int) {
		jobs[rank], errs[rank] = joinFrom(ctx, variables(append(env[:len(env):len(env)], fmt.Sprint("JOB_COMPLETION_INDEX=", rank))...))
	})
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, barrier(ctx, jobs))
	closeAll(t, jobs)

	for _, c := range []struct{ env, says string }{
		{"JOB_COMPLETION_INDEX=3", `boot: JOB_COMPLETION_INDEX="3": must be below SLUICE_SIZE=3: want 0 to 2`},
		{"JOB_COMPLETION_INDEX=0 SLUICE_SIZE=", "boot: SLUICE_SIZE: not set, although JOB_COMPLETION_INDEX is: set it to make the pods of the indexed Job one job, or set SLUICE_RANK=0 and SLUICE_SIZE=1 to make each pod a job of its own"},
		{"JOB_COMPLETION_INDEX=0 SLUICE_SERVER=", "boot: SLUICE_SERVER: not set, although JOB_COMPLETION_INDEX is"},
		{"JOB_COMPLETION_INDEX=0 SLUICE_SECRET=", "boot: SLUICE_SECRET: not set: set SLUICE_SECRET or SLUICE_SECRET_FILE"},
		{"SLUICE_SIZE=2", "boot: SLUICE_RANK: not set, although other SLUICE_ variables are: set SLUICE_RANK, SLUICE_SIZE and SLUICE_SERVER for every rank, or none of them"},
	} {
		_, err := joinFrom(ctx, variables(append(env[:len(env):len(env)], strings.Fields(c.env)...)...))
		require.ErrorContains(t, err, c.says)
	}
}
