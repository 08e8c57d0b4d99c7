package machine_test

import (
	"context"
	"errors"
	"fmt"
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
