package machine

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
)

const envTell = "SLUICE_MACHINE_TEST_TELL"

func TestMain(m *testing.M) {
	if os.Getenv(envTell) != "" {
		var b [8]byte
		for i := range b {
			b[i] = byte(ID() >> (8 * i))
		}
		os.Stdout.Write(b[:])
		return
	}
	leak.Main(m)
}

// TestID: processes of one machine agree.
func TestID(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envTell+"=1")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(out), 8)
	var theirs uint64
	for i := range 8 {
		theirs |= uint64(out[i]) << (8 * i)
	}
	require.Equal(t, ID(), theirs)
	require.NotZero(t, theirs)
}

func TestCount(t *testing.T) {
	require.Equal(t, 0, Count())
	require.Equal(t, 5, Count([]byte{0b101}, []byte{0b100, 0b11}, nil, []byte{0, 0, 0x80}))
	require.Equal(t, 11, Count(first(11)))
	require.GreaterOrEqual(t, Count(CPUs()), 1)
}
