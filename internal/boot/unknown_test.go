package boot

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWarnOfUnknown(t *testing.T) {
	var log bytes.Buffer
	ctx := WithLogger(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
	warnOfUnknown(ctx, []string{"SLUICE_RANK=0", "SLUICE_WAIT=spin", "SLUICE_TEST_LONG=1", "SLUICE_SERVICE_HOST=::1", "SLUICE_PORT=tcp://10.0.0.1:4719", "SLUICE_PORT_4719_TCP_PORT=4719", "PATH=/bin", "COLL_XSIZE=2048", "SLUICE_COLL_BLOCK=64"})
	require.Empty(t, log.String())
	warnOfUnknown(ctx, []string{"SLUICE_SECERT=6b6b", "SLUICE_PROVIDERS=tcp", "COLL_XSIEZ=1", "SLUICE_COLL_BLOKC=1", "SLUICE_COLL_XSIZE=1", "NCCL_COLL_X=1"})
	require.Contains(t, log.String(), `variables="SLUICE_SECERT (is it SLUICE_SECRET?), SLUICE_PROVIDERS, COLL_XSIEZ (is it COLL_XSIZE?), SLUICE_COLL_BLOKC (is it SLUICE_COLL_BLOCK?), SLUICE_COLL_XSIZE"`)
	require.NotContains(t, log.String(), "6b6b")
	log.Reset()
	warnOfUnknown(ctx, []string{"SLUICE_PORT=20000-20999"})
	require.Contains(t, log.String(), "SLUICE_PORT (is it SLUICE_PORTS?)")
}

// TestValues: a value that only a provider reads is refused, whether or not that is used.
func TestValues(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"SLUICE_ROCE_ACK", "foo", `boot: SLUICE_ROCE_ACK="foo": want lazy or message`},
		{"SLUICE_ROCE_SHARE", "abc", `boot: SLUICE_ROCE_SHARE="abc": want a number from 0 to 128`},
		{"SLUICE_ROCE_SHARE", "129", `boot: SLUICE_ROCE_SHARE="129": want a number from 0 to 128`},
		{"SLUICE_XDP_MODE", "foo", `boot: SLUICE_XDP_MODE="foo": want generic or native`},
	} {
		t.Run(c.name+c.value, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			_, err := Join(t.Context())
			var e *EnvError
			require.ErrorAs(t, err, &e)
			require.EqualError(t, err, c.says)
		})
	}
	good := map[string]string{"SLUICE_ROCE_ACK": "message", "SLUICE_ROCE_SHARE": "128", "SLUICE_XDP_MODE": "native"}
	require.NoError(t, checkValues(func(name string) string { return good[name] }))
}
