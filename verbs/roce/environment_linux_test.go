package roce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// Valid and invalid settings in the environment.
func TestEnvironment(t *testing.T) {
	read := map[string]func() (any, error){
		envShare: func() (any, error) { return sharing() },
		envAck:   func() (any, error) { return acknowledging() },
	}
	for _, c := range []struct {
		name, value string
		want        any // nil: an error
	}{
		{envShare, "", 0}, {envShare, "0", 0}, {envShare, "1", 1}, {envShare, "128", 128}, {envShare, "129", nil}, {envShare, "-1", nil}, {envShare, "x", nil},
		{envAck, "", false}, {envAck, "lazy", false}, {envAck, "message", true}, {envAck, "packet", nil},
	} {
		t.Setenv(c.name, c.value)
		got, err := read[c.name]()
		if c.want == nil {
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.ErrorContains(t, err, c.name+"="+c.value)
			dev, err := verbs.Find(loop(t))
			require.NoError(t, err)
			_, err = dev.Open(verbs.Config{})
			require.ErrorIs(t, err, verbs.ErrInvalid)
			t.Setenv(c.name, "")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}
