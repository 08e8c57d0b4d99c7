package machine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(map[string]func([]string) error{"tell": tell}, ranks.Call)
	leak.Main(m)
}

func tell([]string) error {
	id, err := machine.ID()
	kernel, kerr := machine.Kernel()
	fmt.Println(id, kernel)
	return errors.Join(err, kerr)
}

// TestID: processes of one machine agree.
func TestID(t *testing.T) {
	out, err := teller().Output()
	require.NoError(t, err)
	id, kernel := told(t, out)
	same(t, id, machine.ID)
	same(t, kernel, machine.Kernel)
	require.NotZero(t, id)
	require.NotEqual(t, id, kernel)
}

func same(t *testing.T, want uint64, of func() (uint64, error)) {
	t.Helper()
	got, err := of()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// teller is this program, which says what it is on.
func teller() *exec.Cmd { return ranks.Command(context.Background(), "tell") }

func told(t *testing.T, out []byte) (id, kernel uint64) {
	t.Helper()
	_, err := fmt.Sscan(string(out), &id, &kernel)
	require.NoError(t, err)
	return id, kernel
}

func TestCount(t *testing.T) {
	require.Equal(t, 0, machine.Count())
	require.Equal(t, 5, machine.Count([]byte{0b101}, []byte{0b100, 0b11}, nil, []byte{0, 0, 0x80}))
	require.Equal(t, 11, machine.Count(machine.First(11)))
	require.GreaterOrEqual(t, machine.Count(machine.CPUs()), 1)
}

// TestFirstHasOne: the first process has a CPU of its own if and only if every assignment of CPUs to as
// many processes as possible gives it one; against all assignments.
func TestFirstHasOne(t *testing.T) {
	for _, c := range []struct {
		sets []byte
		want bool
	}{
		{[]byte{0b1}, true},
		{[]byte{0}, false},
		{[]byte{0b1, 0b1, 0b110}, false},
		{[]byte{0b110, 0b1, 0b1}, true},
		{[]byte{0b10, 0b1, 0b1}, true},
		{[]byte{0b11, 0b1, 0b10}, false},
		{[]byte{0b111, 0b1, 0b10}, true},
	} {
		require.Equal(t, c.want, machine.FirstHasOne(split(c.sets)), "%b", c.sets)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		sets := make([]byte, 1+rng.IntN(6))
		for i := range sets {
			sets[i] = byte(rng.IntN(32))
		}
		want := most(sets, 0) > most(sets[1:], 0)
		require.Equal(t, want, machine.FirstHasOne(split(sets)), "%b", sets)
	}
	every := make([][]byte, 4096) // many more than CPUs, and none may take long
	for i := range every {
		every[i] = machine.First(1024)
	}
	require.False(t, machine.FirstHasOne(every))
	require.True(t, machine.FirstHasOne(every[:1024]))
}

func split(sets []byte) (list [][]byte) {
	for _, s := range sets {
		list = append(list, []byte{s})
	}
	return list
}

// most is to how many processes CPUs of their own can be assigned, of those that are not taken.
func most(sets []byte, taken byte) int {
	if len(sets) == 0 {
		return 0
	}
	n := most(sets[1:], taken)
	for cpu := range 8 {
		if b := byte(1) << cpu; sets[0]&b != 0 && taken&b == 0 {
			n = max(n, 1+most(sets[1:], taken|b))
		}
	}
	return n
}
