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
	warnOfUnknown(ctx, []string{"SLUICE_RANK=0", "SLUICE_WAIT=spin", "SLUICE_TEST_LONG=1", "SLUICE_SERVICE_HOST=::1", "PATH=/bin"})
	require.Empty(t, log.String())
	warnOfUnknown(ctx, []string{"SLUICE_SECERT=00", "SLUICE_PROVIDERS=tcp"})
	require.Contains(t, log.String(), `variables="[SLUICE_SECERT SLUICE_PROVIDERS]"`)
	require.NotContains(t, log.String(), "00")
}
