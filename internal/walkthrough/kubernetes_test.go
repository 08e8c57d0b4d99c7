package walkthrough

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

const docs = "../../docs/"

// secret is that of all jobs here.
var secret = strings.Repeat("5a", 32)

func secretsOf(m manifest) map[string]core.Secret {
	return map[string]core.Secret{m.job.Name: {StringData: map[string]string{"secret": secret}}}
}

// TestManifest: the manifest in the docs is what the API has, and its parts belong together.
func TestManifest(t *testing.T) {
	m, err := readManifest(docs + "kubernetes.yaml")
	require.NoError(t, err)
	s, j := m.service, m.job
	require.Equal(t, core.ClusterIPNone, s.Spec.ClusterIP)
	require.True(t, s.Spec.PublishNotReadyAddresses)
	require.Equal(t, map[string]string{jobLabel: j.Name}, s.Spec.Selector)
	require.Len(t, s.Spec.Ports, 1)
	require.Equal(t, batch.IndexedCompletion, *j.Spec.CompletionMode)
	require.Equal(t, *j.Spec.Completions, *j.Spec.Parallelism, "the ranks wait for each other")
	require.Zero(t, *j.Spec.BackoffLimit)
	spec := j.Spec.Template.Spec
	require.Equal(t, core.RestartPolicyNever, spec.RestartPolicy)
	require.Equal(t, s.Name, spec.Subdomain)
	require.True(t, *spec.SecurityContext.RunAsNonRoot)
	limits := spec.Containers[0].Resources.Limits
	require.Equal(t, limits, spec.Containers[0].Resources.Requests, "quality of service: guaranteed")
	require.Positive(t, limits.Memory().Value())
	require.Positive(t, limits.Cpu().Value())

	list, err := m.pods(secretsOf(m))
	require.NoError(t, err)
	size := strconv.Itoa(int(*j.Spec.Completions))
	for i, p := range list {
		require.Contains(t, p.env, "JOB_COMPLETION_INDEX="+strconv.Itoa(i))
		require.Contains(t, p.env, "SLUICE_SIZE="+size)
		require.Contains(t, p.env, "SLUICE_SECRET="+secret)
		require.Contains(t, p.env, "SLUICE_SERVER="+net.JoinHostPort(j.Name+"-0."+s.Name, strconv.Itoa(int(s.Spec.Ports[0].Port))))
	}
	_, err = m.pods(nil)
	require.ErrorContains(t, err, "no key secret of secret", "it must be made beforehand")
}

// TestManifestMistakes: the decoder finds what it is there for.
func TestManifestMistakes(t *testing.T) {
	b, err := os.ReadFile(docs + "kubernetes.yaml")
	require.NoError(t, err)
	for _, c := range []struct{ old, new, says string }{
		{"completionMode:", "completionmode:", `unknown field "spec.completionmode"`},
		{"  backoffLimit: 0", "  backofLimit: 0", `unknown field "spec.backofLimit"`},
		{"completions: 4", "completions: four", "cannot unmarshal"},
		{"value: \"4\"", "value: 4", "cannot unmarshal number"},
		{"  restartPolicy: Never", "  restartPolicy: Never\n      restartPolicy: Never", `"restartPolicy" already set`},
		{"kind: Job", "kind: Jop", "no object"},
	} {
		require.Contains(t, string(b), c.old)
		file := filepath.Join(t.TempDir(), "m.yaml")
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(b), c.old, c.new, 1)), 0o600))
		_, err := readManifest(file)
		require.ErrorContains(t, err, c.says, c.new)
	}
}

// buffer is the output of a container.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// machine skips a test that runs containers on a machine that cannot.
func machine(t *testing.T) {
	t.Helper()
	need.Networks(t)
	need.Program(t, "buildah")
	g, err := newCgroup(fmt.Sprintf("sluice-probe-%d", os.Getpid()), 64<<20, 500)
	need.Probe(t, "cgroups of its own for memory and CPU time", err)
	require.NoError(t, g.remove())
}

// rankImage is the image of docs/Dockerfile with command rank as its program. Files that buildah makes end
// with the test.
func rankImage(t *testing.T) image {
	t.Helper()
	folder := t.TempDir()
	b, err := os.ReadFile(docs + "Dockerfile")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "Dockerfile"), b, 0o600))
	require.NoError(t, compile(".", "./rank", filepath.Join(folder, "hello"), "GOWORK=off"))
	require.NoError(t, compile("../../cmd", "./sluice", filepath.Join(folder, "sluice"), "GOWORK="))
	s := newStore(t)
	require.NoError(t, s.build("hello", folder))
	i, err := s.open("hello")
	require.NoError(t, err)
	return i
}

// job has the pods of the manifest in the docs, with another command.
type job struct {
	*cluster
	t    *testing.T
	pods []pod
	out  []*buffer
	runs []*running
}

func newJob(t *testing.T, i image, args ...string) *job {
	t.Helper()
	m, err := readManifest(docs + "kubernetes.yaml")
	require.NoError(t, err)
	list, err := m.pods(secretsOf(m))
	require.NoError(t, err)
	c, err := newCluster(len(list), i)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.close()) })
	j := &job{cluster: c, t: t, pods: list, out: make([]*buffer, len(list)), runs: make([]*running, len(list))}
	for i := range list {
		list[i].args = args
		j.out[i] = &buffer{}
	}
	return j
}

func (j *job) startPod(i int) {
	j.t.Helper()
	var err error
	j.runs[i], err = j.start(j.pods[i], i, j.out[i])
	require.NoError(j.t, err)
}

func (j *job) output() string {
	var b strings.Builder
	for i, o := range j.out {
		fmt.Fprintf(&b, "pod %d:\n%s", i, o)
	}
	return b.String()
}

// status is that of a pod, which ends soon.
func (j *job) status(i int) int {
	j.t.Helper()
	select {
	case <-j.runs[i].end:
	case <-ranks.Within(j.t).Done():
		require.Fail(j.t, "a pod does not end", j.output())
	}
	return j.runs[i].status()
}

func (j *job) await(i int, text string) {
	j.t.Helper()
	for ctx := ranks.Within(j.t); !strings.Contains(j.out[i].String(), text); time.Sleep(time.Millisecond) {
		require.NoError(j.t, ctx.Err(), j.output())
	}
}

// TestContainers builds an image once for all that is done with it.
func TestContainers(t *testing.T) {
	need.Full(t)
	machine(t)
	i := rankImage(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, image)
	}{
		{"pods", testPods},
		{"limits", testLimits},
		{"out of memory", testOutOfMemory},
		{"deleted pod", testDeletedPod},
		{"information", testInformation},
		{"one pod", testOnePod},
		{"sharing", testSharing},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, i) })
	}
}

// testPods: the ranks of the manifest meet, whichever comes first, and end with the right sum.
func testPods(t *testing.T, i image) {
	j := newJob(t, i, "/hello", "meet")
	asked := j.awaited(j.pods[0].fqdn)
	for i := len(j.pods) - 1; i >= 1; i-- {
		j.startPod(i)
	}
	select { // the others look for a name that nothing has yet
	case <-asked:
	case <-ranks.Within(t).Done():
		require.Fail(t, "no pod asks for that of rank 0", j.output())
	}
	j.startPod(0)
	for i := range j.pods {
		require.Zero(t, j.status(i), j.output())
		require.Contains(t, j.out[i].String(), fmt.Sprintf("rank %d of 4: the sum is 10\n", i))
		for other := range j.pods {
			if other != i {
				require.Contains(t, j.out[i].String(), fmt.Sprintf("rank %d reaches %d through tcp\n", i, other))
			}
		}
	}
}

// testLimits: a rank sees the limits of its pod, and is refused more memory than that with an error.
func testLimits(t *testing.T, i image) {
	j := newJob(t, i, "/hello", "limits", strconv.Itoa(1<<30))
	for i := range j.pods {
		j.pods[i].memory, j.pods[i].milli = 256<<20, 1500
		j.startPod(i)
	}
	for i := range j.pods {
		require.Zero(t, j.status(i), j.output())
		// Go rounds a quota up, and takes two at least where there are as many.
		require.Contains(t, j.out[i].String(),
			fmt.Sprintf("rank %d: GOMAXPROCS %d, quota 1.5 CPUs, memory 256 MiB\n", i, min(2, runtime.NumCPU())))
		require.Regexp(t, fmt.Sprintf(`rank %d: 1073741824 bytes: .*there is no room for 1024 MiB: \d+ MiB are available \(256 MiB in /sys/fs/cgroup/`, i), j.out[i])
		require.Zero(t, j.runs[i].g.ooms())
	}
}

// testOutOfMemory: if a rank takes more memory than its pod may have, the kernel kills it, and the others
// hear of it.
func testOutOfMemory(t *testing.T, i image) {
	j := newJob(t, i, "/hello", "eat", "2")
	for i := range j.pods {
		j.pods[i].memory = 128 << 20
		j.startPod(i)
	}
	require.Equal(t, 128+int(syscall.SIGKILL), j.status(2), j.output())
	require.Positive(t, j.runs[2].g.ooms(), "it was not the kernel that killed it")
	j.mourn(2)
}

// mourn has all ranks but one end with an error that names it.
func (j *job) mourn(dead int) {
	j.t.Helper()
	for i := range j.pods {
		if i != dead {
			require.Equal(j.t, 1, j.status(i), j.output())
			require.Contains(j.t, j.out[i].String(), fmt.Sprintf("rank %d: rank %d has died\n", i, dead))
		}
	}
}

// testDeletedPod: a pod that is deleted ends at the first signal, although its program is the first process
// there, which the kernel does not end by a signal; and one whose grace is over by SIGKILL.
func testDeletedPod(t *testing.T, i image) {
	for _, c := range []struct {
		victim, status int
		signal         syscall.Signal
	}{
		{3, 2, syscall.SIGTERM},
		{0, 128 + int(syscall.SIGKILL), syscall.SIGKILL}, // where the rendezvous is
	} {
		t.Run(c.signal.String(), func(t *testing.T) {
			j := newJob(t, i, "/hello", "wait", strconv.Itoa(c.victim))
			for i := range j.pods {
				j.startPod(i)
			}
			j.await(c.victim, "ready\n")
			require.NoError(t, j.runs[c.victim].cmd.Process.Signal(c.signal))
			require.Equal(t, c.status, j.status(c.victim), j.output())
			j.mourn(c.victim)
		})
	}
}

// testInformation: sluice in the image says what connects the pods.
func testInformation(t *testing.T, i image) {
	j := newJob(t, i, "/sluice", "info", "--job")
	for i := range j.pods {
		j.startPod(i)
	}
	for i := range j.pods {
		require.Zero(t, j.status(i), j.output())
	}
	for a := range j.pods {
		for b := range a {
			require.Regexp(t, fmt.Sprintf(`(?m)^%d %d +tcp `, b, a), j.out[0])
		}
	}
}

// testOnePod: sluice run starts all ranks in one pod, where they share memory.
func testOnePod(t *testing.T, i image) {
	j := newJob(t, i, "/sluice", "run", "-n", "4", "/hello", "meet")
	j.startPod(0)
	require.Zero(t, j.status(0), j.output())
	for a := range 4 {
		require.Contains(t, j.out[0].String(), fmt.Sprintf("rank %d of 4: the sum is 10\n", a))
		for b := range 4 {
			if a != b {
				require.Contains(t, j.out[0].String(), fmt.Sprintf("rank %d reaches %d through shm\n", a, b))
			}
		}
	}
}
