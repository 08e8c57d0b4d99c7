package walkthrough

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// testSharing: two containers of one host and one image share memory if they have one network and one user;
// otherwise TCP connects them. What else they have of their own, and how large /dev/shm is, does not matter.
func testSharing(t *testing.T, i image) {
	star, err := netns.NewStar(2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, star.Close()) })
	for _, c := range []struct {
		name     string
		networks [2]int
		users    [2]int
		shm      string // options of the tmpfs at /dev/shm
		through  string
	}{
		{"one network and user", [2]int{0, 0}, [2]int{65532, 65532}, "mode=1777", "shm"},
		{"one page in /dev/shm", [2]int{0, 0}, [2]int{65532, 65532}, "mode=1777,size=4096", "shm"},
		{"a /dev/shm that only root may use", [2]int{0, 0}, [2]int{65532, 65532}, "mode=700", "shm"},
		{"different users", [2]int{0, 0}, [2]int{65532, 65533}, "mode=1777", "tcp"},
		{"networks of their own", [2]int{0, 1}, [2]int{65532, 65532}, "mode=1777", "tcp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out [2]buffer
			var runs [2]*running
			for rank := range 2 {
				k, err := i.container([]string{"/hello", "meet"})
				require.NoError(t, err)
				k.Name, k.User, k.ReadOnly, k.Bare = fmt.Sprintf("rank%d", rank), c.users[rank], true, true
				k.Volumes = map[string]string{"/dev/shm": c.shm}
				k.Files = map[string]string{"hosts": hostsFile(netns.Address(c.networks[rank]), k.Name)}
				k.Env = append(k.Env, "SLUICE_SIZE=2", "SLUICE_RANK="+strconv.Itoa(rank), "SLUICE_SECRET="+secret,
					"SLUICE_SERVER="+netns.Address(c.networks[0]).String()+":7777")
				runs[rank], err = k.start(star.Hosts[c.networks[rank]], 256<<20, 1000, &out[rank], &out[rank])
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, runs[rank].remove()) })
			}
			for rank, r := range runs {
				select {
				case <-r.end:
				case <-ranks.Within(t).Done():
					require.Fail(t, "a rank does not end", "%s%s", &out[0], &out[1])
				}
				require.Zero(t, r.status(), "%s%s", &out[0], &out[1])
				require.Contains(t, out[rank].String(), fmt.Sprintf("rank %d of 2: the sum is 3\n", rank))
				require.Contains(t, out[rank].String(), fmt.Sprintf("rank %d reaches %d through %s\n", rank, 1-rank, c.through))
			}
		})
	}
}
